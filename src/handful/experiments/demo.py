"""``handful demo``: the models of a preset, trained and measured as a grid; one table, one report."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib
from rich.console import Console
from rich.table import Column, Table

from ..datasets import SPLITS, ImageSet, load_dataset
from ..errors import HandfulError, JobFailed
from ..methods import METHODS
from ..progress import grid_bar, messages, progress_bar
from ..publish import check_free, publish
from ..reports import figures
from ..reports.page import PAGE, TEXT, Entry, Report, provenance, ranks
from ..runs.config import RunConfig
from ..runs.results import Result, format_accuracy
from .cell import Cell
from .curves import first_episode
from .grid import run_grid
from .plan import Plan
from .presets import COLUMNS, DEMO, FULL_DEMO
from .ready import Ready, ready_models
from .setting import Setting
from .workers import Workers

EPISODES, TEST_EPISODES = DEMO.budget.episodes, DEMO.budget.test_episodes
NUMBERS, RUNS = "demo.json", "demo-runs"


@dataclass(frozen=True)
class Line:
    """A line of the table: a method's results, one per column, and how it was trained, in words."""

    title: str
    results: list[Result]
    trained_as: str


def run_demo(
    out: Path,
    *,
    full: bool = False,
    episodes: int = EPISODES,
    models: Sequence[str] = (),
    seed: int = 0,
    device: str = "auto",
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, evaluate, print the table and write ``out/report.html``; finished trainings in ``out`` are used again.

    ``full`` is for every method there is, instead of six. ``models`` are names of models that come with the package, or
    run folders: they are taken instead of training their methods.
    """
    started = time.perf_counter()
    preset = FULL_DEMO if full else DEMO
    preset = replace(preset, budget=replace(preset.budget, episodes=episodes, test_episodes=TEST_EPISODES))
    _check_out(out)
    images = {split: load_dataset(preset.dataset, split) for split in SPLITS}
    setting = preset.setting(images["train"], seed)
    ready = ready_models(models, preset.trainings, setting, images["test"])
    plan = Plan(setting)
    asked = preset.ask(plan)
    runs = out / RUNS
    cells = {cell.config.method: cell for cell in plan.cells}
    _train([cell for method, cell in cells.items() if method not in ready], runs, images["train"], device)
    lines = []
    with progress_bar() as bar:
        for system, columns in asked.items():
            known = ready.get(system.training)
            find = known.measure(device, bar) if known else lambda source: source.found(runs)
            results = [one.result(find) for one in columns.values()]
            trained_as = _trained_as(known.config if known else cells[system.training].config, known)
            lines.append(Line(results[0].title, results, trained_as))
    order = [cls.title for cls in METHODS.values()]  # an option may have made another title: such lines come last
    lines.sort(key=lambda line: order.index(line.title) if line.title in order else len(order))
    trained = _training(setting, ready, preset.trainings)
    _print(lines, trained, setting, console or Console())

    given = "".join(f"--model {model} " for model in models)
    command = f"handful demo {'--full ' if full else ''}{given}--episodes {episodes} --seed {seed}"
    tac = ready["tac"].folder if "tac" in ready else runs / cells["tac"].name
    report = _report(lines, trained, setting, images["test"], tac, command)
    seconds = time.perf_counter() - started
    result = {
        "dataset": setting.dataset,
        "protocol": setting.protocol(setting.spec(setting.fewest, False)).to_json(),
        "training_episodes": episodes,
        "models": {method: {"name": known.name, "recipe": known.recipe} for method, known in ready.items()},
        "rows": {line.title: dict(zip(COLUMNS, map(Result.to_json, line.results), strict=True)) for line in lines},
        "report": str(out / PAGE),
        "wall_seconds": round(seconds, 1),
    }
    report.attach(NUMBERS, (json.dumps(result, indent=2) + "\n").encode())
    publish(out, report.files())
    messages.print(f"Took {seconds:.0f} s. Report: {out / PAGE}", highlight=False)
    return result


def _check_out(out: Path) -> None:
    check_free(out, (PAGE, TEXT, NUMBERS))
    ours = (out / NUMBERS).exists() or (out / RUNS).is_dir()
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not ours:
        raise HandfulError(f"{out} exists and is not from a demo: choose another --out")


def _train(cells: list[Cell], runs: Path, images: ImageSet, device: str) -> None:
    """Train and measure the models that are not there yet, as many at a time as there are cores."""
    workers = Workers(threads=max(1, joblib.cpu_count() // max(1, len(cells))), device=device)
    with grid_bar(len(cells), workers.at_once, "models") as end:
        outcomes = run_grid(
            cells, runs, workers, fingerprint=images.fingerprint(),
            report=lambda outcome: end(outcome.line(), outcome.skipped),
        )  # fmt: skip
    if failed := [outcome for outcome in outcomes if outcome.results is None]:
        raise JobFailed("; ".join(f"{outcome.name} could not be trained: {outcome.reason}" for outcome in failed))


def _trained_as(config: RunConfig, ready: Ready | None) -> str:
    method = METHODS[config.method].title + (", with distractors" if config.train.distractor_ways else "")
    return f"{method}; {ready.name}, not trained here" if ready else method


def _training(setting: Setting, ready: dict[str, Ready], methods: Collection[str]) -> str:
    """How much training there was, in words."""
    sentences = [f"{known.name} was not trained here but before: {known.recipe}." for known in ready.values()]
    if len(ready) < len(methods):
        who = "Each model that was trained here" if ready else "Each model"
        also = "; the classifier two images of every class" if "classifier" in methods else ""
        sentences.append(
            f"{who} saw only {setting.budget.episodes} training episodes ({setting.recipe.train.describe()}{also}), so "
            "this shows how things work, not which method is best."
        )
    return " ".join(sentences)


def _accuracy(result: Result) -> str:
    return format_accuracy(result.mean, result.interval)


def _title(setting: Setting) -> str:
    return f"{setting.recipe.test.ways}-way {setting.fewest}-shot on {setting.dataset}"


def _print(lines: list[Line], trained: str, setting: Setting, console: Console) -> None:
    title = f"{_title(setting)}: accuracy in %, ± 95 % interval"
    table = Table(Column("method", no_wrap=True), *COLUMNS, title=title)
    for line in lines:
        table.add_row(line.title, *map(_accuracy, line.results))
    console.print(table)
    console.print(f"{trained} 'handful train --episodes 2000' goes further.", highlight=False, markup=False)


def _report(lines: list[Line], trained: str, setting: Setting, test: ImageSet, tac: Path, command: str) -> Report:
    """The table, accuracy against refinements, and one episode as the run of TAC sees it."""
    spec = setting.spec(setting.fewest, False)
    report = Report(f"handful demo: {_title(setting)}")
    report.section("Accuracy (%)")
    report.table(["method", *COLUMNS, "trained as"], _table(lines))
    report.paragraph(
        f"{setting.protocol(spec).describe()}; with distractors, {spec.ways} more classes add {spec.unlabelled} "
        "unlabelled images each. ± is the 95 % interval over episodes; 'it.' is the number of refinements, chosen on "
        f"validation classes. {trained} The paper reports no figures for this data set."
    )
    report.section("Accuracy against refinements")
    rows = [
        row
        for column, name in enumerate(COLUMNS)
        for line in lines
        if len((found := line.results[column]).by_iteration) > 1
        for row in figures.iteration_rows(name, line.title, found.by_iteration, found.intervals or [])
    ]
    report.picture(figures.accuracy_by_iteration(rows), "accuracy against refinements", "refinements", rows)
    report.paragraph("Zero refinements use the labelled images only.")
    report.section("One episode")
    wanted = replace(spec, unlabelled=len(test.images))  # all that there are
    points, shown = first_episode(tac, test, setting.labelled_ratio, setting.seed, wanted, steps=(1, 4))
    report.picture(figures.tsne(points), "t-SNE of one episode", "episode", points)
    report.paragraph(
        f"The first test episode of seed {setting.seed}: {shown.shots} labelled and {shown.unlabelled} unlabelled "
        "images of each class, by t-SNE. Coloured points lie in their own class's cluster (how many is written "
        "beside), grey ones in another's."
    )
    report.section("Where this comes from")
    data = f"{setting.dataset}, fingerprint {test.fingerprint()} (test)"
    report.facts(provenance(command, {"seed": str(setting.seed), "data": data}))
    return report


def _table(lines: list[Line]) -> list[list[Entry | str]]:
    """Methods down, columns across, best and second best marked; the last column says how each was trained."""
    ranked = [ranks([line.results[column].mean for line in lines]) for column in range(len(COLUMNS))]
    return [
        [
            line.title,
            *(
                Entry(
                    _accuracy(found),
                    f"{found.iterations} it." if len(found.by_iteration) > 1 else "",
                    ranked[column][row],
                )
                for column, found in enumerate(line.results)
            ),
            line.trained_as,
        ]
        for row, line in enumerate(lines)
    ]
