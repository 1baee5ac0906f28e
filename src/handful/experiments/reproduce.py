"""Run what :mod:`.plan` has planned and write the report: tables beside published figures, pictures, provenance.

A report of what is there so far is written while the cells run. So a reproduction that was stopped leaves one, which
names the cells that are missing; and what was made before in the same folder, on the same data and with the same
settings, is shown again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..datasets import SPLITS, ImageSet, load_dataset
from ..datasets.base import no_bar
from ..errors import HandfulError, Interrupted, JobFailed
from ..io import read_object, write_json
from ..progress import grid_bar, messages, progress_bar
from ..publish import check_free, publish
from ..reports.page import PAGE, TEXT, Report, provenance
from ..runs.folder import check_unseen
from ..runs.results import CELL
from .cell import Cell, Outcome, worked
from .check import check_classes
from .contents import make_section
from .figures import FIGURES
from .grid import run_grid
from .job import RUNS, Job, Section, section_of, settings_of
from .paper import START, TABLES
from .plan import Plan, plan_start, plan_table
from .sections import kept_sections, show
from .setting import Setting
from .workers import LOCAL, Workers

NUMBERS = "report.json"
DRAFT_SECONDS = 60.0  # between two reports of what is there so far, at least


def check_what(whats: Sequence[str]) -> tuple[str, ...]:
    """The tables and figures that are wanted; ``all`` leaves out Table 2, which is Table 1 on another data set.

    And figures that say so themselves, because of what they cost.
    """
    known = (*TABLES, *FIGURES, "all")
    for what in whats:
        if what not in known:
            raise HandfulError(f"cannot reproduce '{what}': choose from {', '.join(known)}")
    if "all" in whats:
        return tuple(
            what for what in known if what not in ("all", "table2") and (what not in FIGURES or FIGURES[what].in_all)
        )
    return tuple(dict.fromkeys(whats))


def reproduce(
    whats: Sequence[str],
    setting: Setting,
    out: Path,
    *,
    command: str,
    images: Mapping[str, ImageSet] | None = None,
    workers: Workers = LOCAL,
) -> dict[str, Any]:
    """Train and measure what the tables and figures need, and write ``report.html``, ``report.md`` and their parts.

    Args:
        whats: names of tables and figures.
        setting: what they are made on.
        out: folder of the report; the runs are in its folder ``runs``.
        command: what a reader would type to get this report.
        images: all splits of the data set; loaded here if not given.
        workers: who trains and measures.

    Returns:
        What was measured, as in ``report.json``; ``failed`` names cells without a result.
    """
    ours = (out / RUNS).is_dir() or (out / NUMBERS).is_file()
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not ours:
        raise HandfulError(f"{out} exists and is not from a reproduction: choose another --out")
    check_free(out, (PAGE, TEXT, NUMBERS))  # not after hours of training
    kept = kept_sections(read_object(out / NUMBERS)) if (out / NUMBERS).is_file() else {}
    cells, planned = _planned(whats, setting)
    images = images or _load(setting)
    if setting.given_start is not None:  # not after hours of training
        check_unseen(setting.given_start, images["test"])
    check_classes(cells, setting.dataset, {split: len(images[split].class_names) for split in SPLITS})
    job = Job(setting, command, out, images, cells, planned, kept)
    try:
        if setting.pretraining:  # only once it is known that the rest can be planned
            setting = _pretrained(setting, out, workers)
            cells, planned = _planned(whats, setting)
            job = replace(job, setting=setting, cells=cells, planned=planned)
        _take_start(job)
        _run(job, workers)
    except Interrupted:
        _draft(job)
        raise
    with progress_bar() as bar:
        return _write(job, {what: make_section(job, what, bar) for what in whats})


def _planned(whats: Sequence[str], setting: Setting) -> tuple[list[Cell], dict[str, Any]]:
    plan = Plan(setting)
    planned = {what: FIGURES[what].plan(plan) if what in FIGURES else plan_table(plan, TABLES[what]) for what in whats}
    return plan.cells, planned


def _load(setting: Setting) -> dict[str, ImageSet]:
    with progress_bar() as bar:
        others = {
            split: load_dataset(setting.dataset, split, setting.data, options=setting.data_options, bar=bar)
            for split in SPLITS[1:]
        }
    return {"train": setting.images, **others}


def _pretrained(setting: Setting, out: Path, workers: Workers) -> Setting:
    """Train the common start, or take it if it is there."""
    plan = Plan(setting)
    source = plan_start(plan)
    with grid_bar(1) as end:
        (outcome,) = run_grid(
            plan.cells,
            out / RUNS,
            workers,
            fingerprint=setting.images.fingerprint(),
            report=lambda outcome: end(outcome.line(), outcome.skipped),
        )
    if outcome.results is None:
        raise JobFailed(f"the classifier that all models start from could not be trained: {outcome.reason}")
    return replace(setting, start=out / RUNS / source.cell)


def _take_start(job: Job) -> None:
    """Copy the start for the lines of the tables that need no other training; measurements are added to a copy."""
    start = job.setting.start
    for cell in job.cells:
        run = job.runs / cell.name
        if start is not None and cell.config.method == START["classifier"].method and not run.exists():
            job.runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".start-", dir=job.runs) as folder:
                copy = Path(folder) / cell.name
                shutil.copytree(start, copy, ignore=shutil.ignore_patterns(CELL, "*.lock"))
                write_json(copy / "config.json", cell.config.to_json())  # of a shipped model: where the data is here
                copy.rename(run)


def _run(job: Job, workers: Workers) -> None:
    """Run the cells; write a report of what is there so far when one has ended, at most once in ``DRAFT_SECONDS``."""
    written: float | None = None
    with grid_bar(len(job.cells), workers.at_once) as end:

        def ended(outcome: Outcome) -> None:
            nonlocal written
            job.outcomes[outcome.name] = outcome
            end(outcome.line(), outcome.skipped)
            due = written is None or time.monotonic() - written >= DRAFT_SECONDS
            if due and not outcome.skipped and len(job.outcomes) < len(job.cells):
                _draft(job)
                written = time.monotonic()

        run_grid(job.cells, job.runs, workers, report=ended, fingerprint=job.setting.images.fingerprint())


def _draft(job: Job) -> None:
    """Write a report of what is there so far; what cannot be written now may be at the end."""
    try:
        sections = {}
        for what in job.planned:
            before = job.kept.get(what)
            late = what in FIGURES and FIGURES[what].late
            if late and before and before.settings == settings_of(job.setting):
                sections[what] = before
            else:
                sections[what] = section_of(job, what, [], []) if late else make_section(job, what, no_bar)
        _write(job, sections)
    except (HandfulError, OSError) as error:
        messages.print(f"no report of what is there so far: {error}", highlight=False, soft_wrap=True)


# --- the report


def _write(job: Job, made: dict[str, Section]) -> dict[str, Any]:
    """Publish the report of these sections, and of those that were made before with the same settings."""
    setting, settings = job.setting, settings_of(job.setting)
    before = {what: section for what, section in job.kept.items() if what not in made}
    again = {what: section for what, section in before.items() if section.settings == settings}
    others = {what: section for what, section in before.items() if what not in again}
    names = [cell.name for cell in job.cells]
    missing, shown = job.missing(names), {**made, **again}

    report = Report(f"{', '.join(shown)} on {setting.dataset}")
    if missing:
        report.section("Not finished")
        report.paragraph(
            f"{len(missing)} of {len(names)} cells are missing: {', '.join(missing)}. Run the same command again to "
            f"resume: {job.command}"
        )
    for what, section in shown.items():
        show(report, what, section)
        if what in again:
            unfinished = f" Not finished, these cells are missing: {', '.join(section.missing)}." * bool(
                section.missing
            )
            report.paragraph(f"Made before in this folder, with the same settings: {section.command}.{unfinished}")
    if failed := {name: reason for section in shown.values() for name, reason in section.failed.items()}:
        report.section("Failed")
        report.paragraph("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    if others:
        report.section("Made here with other settings")
        report.paragraph(
            "Not shown, as it cannot be compared with the above: "
            + "; ".join(
                f"{what} ({what}.csv)" + f", by {one.command}" * bool(one.command) for what, one in others.items()
            )
        )
    report.section("Where this comes from")
    report.facts(provenance(job.command, _facts(job)))
    content: dict[str, Any] = {
        "dataset": setting.dataset,
        "caption": setting.caption(),
        "failed": job.failed(names),
        "missing": missing,
        **{what: section.rows for what, section in shown.items()},
        "sections": {what: section.about() for what, section in shown.items()},
        "others": {what: asdict(section) for what, section in others.items()},
        "report": str(job.out / PAGE),
    }
    report.attach(NUMBERS, (json.dumps(content, indent=2) + "\n").encode())
    publish(job.out, report.files())
    return content


def _facts(job: Job) -> dict[str, str]:
    setting = job.setting
    runs = {job.runs / name for name in job.outcomes} | ({setting.start} if setting.start else set())
    hours = sum(map(worked, runs)) / 3600
    return {
        "data": f"{setting.dataset}, fingerprint {setting.images.fingerprint()} (train)",
        "seed": str(setting.seed),
        "trainings": f"{len(runs)}, {hours:.1f} hours of one worker in all",
    }
