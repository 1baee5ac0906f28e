"""What each table and figure of a reproduction shows, gathered from the run folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..datasets import ImageSet
from ..datasets.base import Bar
from ..reports.figures import Row, iteration_rows
from ..runs.episodes import MOST_ITERATIONS
from ..runs.results import Result
from .cell import Cell, Outcome
from .curves import entropy_rows, first_episode
from .paper import BUDGETS, PUBLISHED, PUBLISHED_TEST_WAYS, START, TABLES, Column, System
from .plan import Setting, Source
from .sections import Section

RUNS = "runs"  # folder of the trainings
TSNE_UNLABELLED, TSNE_STEPS = 80, (1, 2, 3, 4)  # as in the paper's figure


@dataclass(frozen=True)
class Job:
    """One call of :func:`reproduce`.

    Attributes:
        setting: what it is made on.
        command: what a reader would type to get this.
        out: folder of the report.
        images: all splits of the data set.
        cells: the trainings.
        planned: the measurements of each table and figure.
        kept: what was made in the folder before.
        outcomes: what has become of the cells so far, by name.
    """

    setting: Setting
    command: str
    out: Path
    images: Mapping[str, ImageSet]
    cells: list[Cell]
    planned: dict[str, Any]
    kept: dict[str, Section]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.out / RUNS

    def result(self, source: Source) -> Result | None:
        """A measurement; None where its cell has failed or not ended."""
        return source.result(self.runs) if source.cell in self.outcomes else None

    def failed(self, cells: Sequence[str]) -> dict[str, str]:
        ended = {name: self.outcomes[name] for name in cells if name in self.outcomes}
        return {name: str(outcome.reason) for name, outcome in ended.items() if outcome.results is None}

    def missing(self, cells: Sequence[str]) -> list[str]:
        return [name for name in cells if name not in self.outcomes]


def settings_of(setting: Setting) -> dict[str, Any]:
    """What two tables must have in common to stand in one report; which lines and columns they have may differ."""
    found = {
        "dataset": setting.dataset, "fingerprint": setting.images.fingerprint(), "recipe": asdict(setting.recipe),
        "labelled_ratio": setting.labelled_ratio, "budget": asdict(setting.budget), "training": setting.training,
        "seed": setting.seed, "pretraining": setting.pretraining,
    }  # fmt: skip
    settings: dict[str, Any] = json.loads(json.dumps(found))  # as they are read again: lists for tuples
    return settings


def _sources(planned: Any) -> Iterator[Source]:
    if isinstance(planned, Source):
        yield planned
    else:
        for part in planned.values():
            yield from _sources(part)


def section_of(job: Job, what: str, rows: list[Row], notes: list[str]) -> Section:
    cells = list(dict.fromkeys(source.cell for source in _sources(job.planned[what])))
    return Section(rows, notes, job.failed(cells), job.missing(cells), job.command, settings_of(job.setting))


def _table(job: Job, what: str, bar: Bar) -> Section:
    planned: dict[System, dict[Column, Source]] = job.planned[what]
    setting = job.setting
    published = PUBLISHED.get(setting.dataset, {}) if setting.recipe.test.ways == PUBLISHED_TEST_WAYS else {}
    rows: list[Row] = []
    for system, sources in planned.items():
        for column, source in sources.items():
            result = job.result(source)
            lacking = "failed" if source.cell in job.outcomes else "missing"
            rows.append({
                "system": system.line, "shots": column[0], "distractors": column[1],
                "accuracy": result and result.mean, "interval": result and result.interval,
                "split_interval": result and result.split_interval, "refinements": result and result.iterations,
                "published": published.get(system.title, {}).get(column), "state": "measured" if result else lacking,
            })  # fmt: skip
    notes = [setting.caption()]
    if any(system.training == START["classifier"].method for system in planned):
        notes.append("The lines called Classifier are of the common start alone.")
    notes.append(
        "'it.': refinements, chosen on validation classes. Bold: best of the column; underlined or in italics: second. "
        + _about_published(setting, bool(published))
    )
    return section_of(job, what, rows, notes)


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


def _iterations(job: Job, what: str, bar: Bar) -> Section:
    """TAC against the variant of soft k-means that is best at its own best number of refinements."""
    planned: dict[System, Source] = job.planned[what]
    setting = job.setting
    results = {system: job.result(source) for system, source in planned.items()}
    there = {system: result for system, result in results.items() if result is not None}
    ours = [system for system in there if system.method == "tac"]
    rivals = sorted((s for s in there if s.method != "tac"), key=lambda s: -max(there[s].by_iteration))
    rows: list[Row] = []
    for system in [*ours, *rivals[:1]]:
        means = there[system].by_iteration
        kept = there[system].intervals or []
        intervals = kept if len(kept) == len(means) else [None] * len(means)
        rows += iteration_rows(f"{setting.dataset}, {setting.fewest}-shot", system.title, means, intervals)
    note = (
        f"TAC and the best variant of soft k-means, {setting.recipe.test.ways}-way, without distractors. Zero "
        f"refinements use the labelled images only. {setting.caption()}"
    )
    return section_of(job, what, rows, [note])


def _entropy(job: Job, what: str, bar: Bar) -> Section:
    source: Source = job.planned[what]
    rows: list[Row] = []
    if job.result(source) is not None:
        rows = entropy_rows(job.runs / source.cell, job.images["test"], source.measurement.protocol, bar)
    note = (
        "The same weights of TAC; unlabelled images are clustered in M or in the embedding space, queries are "
        f"classified in M. Cross-entropy is that of the soft labels which the refinement used. {job.setting.caption()}"
    )
    return section_of(job, what, rows, [note])


def _tsne(job: Job, what: str, bar: Bar) -> Section:
    source: Source = job.planned[what]
    setting = job.setting
    if job.result(source) is None:
        return section_of(job, what, [], [])
    wanted = replace(setting.spec(setting.fewest, False), unlabelled=TSNE_UNLABELLED)
    rows, spec = first_episode(
        job.runs / source.cell, job.images["test"], setting.labelled_ratio, setting.seed, wanted, TSNE_STEPS
    )
    note = (
        f"t-SNE of the first test episode of seed {setting.seed}: {spec.shots} labelled and {spec.unlabelled} "
        "unlabelled images of each class. Coloured points lie in their own class's cluster (how many is written "
        "beside), grey ones in another's."
    )
    return section_of(job, what, rows, [note])


def _distractors(job: Job, what: str, bar: Bar) -> Section:
    planned: dict[int, dict[System, dict[float, Source]]] = job.planned[what]
    rows = [
        {"setting": f"{shots}-shot", "method": system.title, "share": round(100 * share),
         "accuracy": result.mean, "interval": result.interval}
        for shots, lines in planned.items()
        for system, sources in lines.items()
        for share, source in sources.items()
        if (result := job.result(source)) is not None
    ]  # fmt: skip
    test = job.setting.recipe.test
    note = (
        f"Realistic episodes: {2 * test.ways * test.unlabelled} unlabelled images in all, uneven over the classes, "
        "distractors from all other classes. The weights are those trained with even distractors, half of the "
        f"unlabelled images, for every share. {job.setting.caption()}"
    )
    return section_of(job, what, rows, [note])


SECTIONS: dict[str, Callable[[Job, str, Bar], Section]] = {
    **dict.fromkeys(TABLES, _table),
    "iterations": _iterations,
    "entropy": _entropy,
    "tsne": _tsne,
    "distractors": _distractors,
}
COMPUTED = ("entropy", "tsne")  # from images, not from results that are there: at the end only
assert max(TSNE_STEPS) <= MOST_ITERATIONS
