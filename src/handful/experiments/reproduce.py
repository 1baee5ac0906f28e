"""Run what :mod:`.plan` has planned and write the report: tables beside published figures, pictures, provenance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..datasets import SPLITS, ImageSet, load_dataset
from ..datasets.base import Bar
from ..errors import HandfulError, JobFailed
from ..progress import grid_bar, progress_bar
from ..publish import check_free, publish
from ..reports import figures
from ..reports.figures import Row
from ..reports.page import PAGE, TEXT, Entry, Report, csv_bytes, provenance, ranks
from ..runs.episodes import MOST_ITERATIONS
from ..runs.results import Result, format_accuracy
from .cell import worked
from .check import check_classes
from .curves import entropy_rows, first_episode
from .grid import run_grid
from .paper import BUDGETS, PUBLISHED, PUBLISHED_TEST_WAYS, START, TABLES, Column, System, TableSpec
from .plan import Plan, Setting, Source, columns, plan_distractors, plan_iterations, plan_start, plan_table, plan_tac

RUNS = "runs"  # folder of the trainings
NUMBERS = "report.json"
TSNE_UNLABELLED, TSNE_STEPS = 80, (1, 2, 3, 4)  # as in the paper's figure


def reproduce(
    whats: Sequence[str],
    setting: Setting,
    out: Path,
    *,
    command: str,
    images: Mapping[str, ImageSet] | None = None,
    **grid: Any,
) -> dict[str, Any]:
    """Train and measure what the tables and figures need, and write ``report.html``, ``report.md`` and their parts.

    Args:
        whats: names of tables and figures.
        setting: what they are made on.
        out: folder of the report; the runs are in its folder ``runs``.
        command: what a reader would type to get this report.
        images: all splits of the data set; loaded here if not given.
        grid: further arguments of :func:`run_grid`.

    Returns:
        What was measured, as in ``report.json``; ``failed`` names cells without a result.
    """
    ours = (out / RUNS).is_dir() or (out / "report.json").is_file()
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not ours:
        raise HandfulError(f"{out} exists and is not from a reproduction: choose another --out")
    check_free(out, (PAGE, TEXT, NUMBERS))  # not after hours of training
    plan, planned = _planned(whats, setting)
    images = images or _load(setting)
    check_classes(plan.cells, setting.dataset, {split: len(images[split].class_names) for split in SPLITS})
    if setting.pretraining:  # only once it is known that the rest can be planned
        setting = _pretrained(setting, out, grid)
        plan, planned = _planned(whats, setting)
    cells = plan.cells
    with grid_bar(len(cells)) as end:
        outcomes = run_grid(cells, out / RUNS, report=lambda outcome: end(outcome.line(), outcome.skipped), **grid)
    failed = {outcome.name: outcome.reason for outcome in outcomes if outcome.results is None}

    report = Report(f"{', '.join(whats)} on {setting.dataset}")
    content: dict[str, Any] = {"dataset": setting.dataset, "caption": setting.caption(), "failed": failed}
    with progress_bar() as bar:
        for what in whats:
            if what in TABLES:
                content[what] = _table(report, what, setting, planned[what], out)
            else:
                content[what] = _FIGURES[what](report, setting, planned[what], out, bar)
    if failed:
        report.section("Failed")
        report.paragraph("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    report.section("Where this comes from")
    runs = {out / RUNS / cell.name for cell in cells} | ({setting.start} if setting.start else set())
    hours = sum(map(worked, runs)) / 3600
    facts = {
        "data": f"{setting.dataset}, fingerprint {setting.images.fingerprint()} (train)",
        "seed": str(setting.seed),
        "trainings": f"{len(runs)}, {hours:.1f} hours of one worker in all",
    }
    report.facts(provenance(command, facts))
    content["report"] = str(out / PAGE)
    report.attach(NUMBERS, (json.dumps(content, indent=2) + "\n").encode())
    publish(out, report.files())
    return content


def _planned(whats: Sequence[str], setting: Setting) -> tuple[Plan, dict[str, Any]]:
    plan = Plan(setting)
    return plan, {what: _PLANS[what](plan) if what in _PLANS else plan_table(plan, TABLES[what]) for what in whats}


def _load(setting: Setting) -> dict[str, ImageSet]:
    with progress_bar() as bar:
        others = {
            split: load_dataset(setting.dataset, split, setting.data, options=setting.data_options, bar=bar)
            for split in SPLITS[1:]
        }
    return {"train": setting.images, **others}


def _pretrained(setting: Setting, out: Path, grid: dict[str, Any]) -> Setting:
    """Train the common start, or take it if it is there."""
    plan = Plan(setting)
    source = plan_start(plan)
    with grid_bar(1) as end:
        (outcome,) = run_grid(
            plan.cells, out / RUNS, report=lambda outcome: end(outcome.line(), outcome.skipped), **grid
        )
    if outcome.results is None:
        raise JobFailed(f"the classifier that all models start from could not be trained: {outcome.reason}")
    return replace(setting, start=out / RUNS / source.cell)


def _table(
    report: Report, what: str, setting: Setting, planned: dict[System, dict[Column, Source]], out: Path
) -> list[Row]:
    """Our accuracy with its interval, the published one and the difference below it; best and second best marked."""
    table: TableSpec = TABLES[what]
    found = {
        system: {column: source.result(out / RUNS) for column, source in sources.items()}
        for system, sources in planned.items()
    }
    shown = columns(setting, table)
    ranked = {column: ranks([_mean(line[column]) for line in found.values()]) for column in shown}
    published = PUBLISHED.get(setting.dataset, {}) if setting.recipe.test.ways == PUBLISHED_TEST_WAYS else {}
    lines: list[list[Entry | str]] = []
    rows: list[Row] = []
    for index, (system, cells) in enumerate(found.items()):
        entries = []
        for column in shown:
            result, theirs = cells[column], published.get(system.title, {}).get(column)
            entries.append(_entry(result, theirs, ranked[column][index]))
            rows.append({
                "system": system.line, "shots": column[0], "distractors": column[1],
                "accuracy": result and result.mean, "interval": result and result.interval,
                "split_interval": result and result.split_interval, "refinements": result and result.iterations,
                "published": theirs,
            })  # fmt: skip
        lines.append([system.line, *entries])
    report.section(f"{table.title} (%)")
    header = [f"{shots}-shot" + (", distractors" if others else "") for shots, others in shown]
    report.table(["system", *header], lines)
    report.paragraph(setting.caption())
    if any(system.training == START[0].method for system in found):
        report.paragraph("The lines called Classifier are of the common start alone.")
    report.paragraph(
        "'it.': refinements, chosen on validation classes. Bold: best of the column; underlined or in italics: second. "
        + _about_published(setting, bool(published))
    )
    report.attach(f"{what}.csv", csv_bytes(rows))
    return rows


def _mean(result: Result | None) -> float | None:
    return None if result is None else float(result.mean)


def _entry(result: Result | None, published: float | None, rank: str) -> Entry:
    if result is None:
        return Entry("failed")
    notes = [f"{result.iterations} it."] if result.iterations else []
    if published is not None:
        notes.append(f"published {published:.2f} ({result.mean - published:+.2f})")
    return Entry(format_accuracy(result.mean, result.interval), ", ".join(notes), rank)


def _about_published(setting: Setting, there: bool) -> str:
    if not there and setting.dataset in PUBLISHED:
        return f"The published figures are of {PUBLISHED_TEST_WAYS} ways in testing, so they do not stand beside these."
    if not there:
        return "There are no published figures for this data set."
    short = setting.budget.episodes < BUDGETS["paper"].episodes
    warning = (
        f" These models saw {setting.budget.episodes:,} training episodes, TapNet's public code takes "
        f"{BUDGETS['paper'].episodes:,}: trained too briefly to be compared with the published figures."
    )
    return "Published: beside ours, with the difference." + (warning if short and setting.dataset != "omniglot" else "")


def _iterations(report: Report, setting: Setting, planned: dict[System, Source], out: Path, bar: Bar) -> list[Row]:
    """TAC against the variant of soft k-means that is best at its own best number of refinements."""
    results = {system: source.result(out / RUNS) for system, source in planned.items()}
    there = {system: result for system, result in results.items() if result is not None}
    ours = [system for system in there if system.method == "tac"]
    rivals = sorted((s for s in there if s.method != "tac"), key=lambda s: -max(there[s].by_iteration))
    rows = [
        {"setting": f"{setting.dataset}, {setting.fewest}-shot", "method": system.title, "refinements": step,
         "accuracy": mean, "interval": interval}
        for system in [*ours, *rivals[:1]]
        for step, (mean, interval) in enumerate(
            zip_longest(there[system].by_iteration, there[system].intervals or [])
        )
    ]  # fmt: skip
    report.section("Accuracy against refinements")
    if rows:
        picture = figures.accuracy_by_iteration(rows)
        report.picture(picture, "accuracy against refinements", "iterations", rows)
    report.paragraph(
        f"TAC and the best variant of soft k-means, {setting.recipe.test.ways}-way, without distractors. Zero "
        f"refinements use the labelled images only. {setting.caption()}"
    )
    return rows


def _entropy(report: Report, setting: Setting, source: Source, out: Path, bar: Bar) -> list[Row]:
    run = out / RUNS / source.cell
    rows: list[Row] = []
    report.section("Clustering in M, and in the embedding space")
    if source.result(out / RUNS) is not None:
        rows = entropy_rows(run, _test(setting, bar), source.measurement.protocol, bar)
        report.picture(figures.entropy(rows), "accuracy and cross-entropy against refinements", "entropy", rows)
    report.paragraph(
        "The same weights of TAC; unlabelled images are clustered in M or in the embedding space, queries are "
        f"classified in M. Cross-entropy is that of the soft labels which the refinement used. {setting.caption()}"
    )
    return rows


def _tsne(report: Report, setting: Setting, source: Source, out: Path, bar: Bar) -> list[Row]:
    report.section("The space after each refinement")
    if source.result(out / RUNS) is None:
        return []
    wanted = replace(setting.spec(setting.fewest, False), unlabelled=TSNE_UNLABELLED)
    rows, spec = first_episode(
        out / RUNS / source.cell, _test(setting, bar), setting.labelled_ratio, setting.seed, wanted, TSNE_STEPS
    )
    report.picture(figures.tsne(rows), "t-SNE of one episode", "tsne", rows)
    report.paragraph(
        f"t-SNE of the first test episode of seed {setting.seed}: {spec.shots} labelled and {spec.unlabelled} "
        "unlabelled images of each class. Coloured points lie in their own class's cluster (how many is written "
        "beside), grey ones in another's."
    )
    return rows


def _distractors(
    report: Report, setting: Setting, planned: dict[int, dict[System, dict[float, Source]]], out: Path, bar: Bar
) -> list[Row]:
    rows = [
        {"setting": f"{shots}-shot", "method": system.title, "share": round(100 * share),
         "accuracy": result.mean, "interval": result.interval}
        for shots, lines in planned.items()
        for system, sources in lines.items()
        for share, source in sources.items()
        if (result := source.result(out / RUNS)) is not None
    ]  # fmt: skip
    report.section("Accuracy under a growing share of distractors")
    if rows:
        picture = figures.accuracy_by_share(rows)
        report.picture(picture, "accuracy against the share of distractors", "distractors", rows)
    test = setting.recipe.test
    report.paragraph(
        f"Realistic episodes: {2 * test.ways * test.unlabelled} unlabelled images in all, uneven over the classes, "
        "distractors from all other classes. The weights are those trained with even distractors, half of the "
        f"unlabelled images, for every share. {setting.caption()}"
    )
    return rows


def _test(setting: Setting, bar: Bar) -> ImageSet:
    return load_dataset(setting.dataset, "test", setting.data, options=setting.data_options, bar=bar)


_PLANS: dict[str, Callable[[Plan], Any]] = {
    "iterations": plan_iterations,
    "entropy": plan_tac,
    "tsne": plan_tac,
    "distractors": plan_distractors,
}
_FIGURES: dict[str, Callable[..., list[Row]]] = {
    "iterations": _iterations,
    "entropy": _entropy,
    "tsne": _tsne,
    "distractors": _distractors,
}
assert max(TSNE_STEPS) <= MOST_ITERATIONS
