"""One reproduction: what it is made on, what has become of its cells, and the sections of its report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint import checksum
from ..datasets import ImageSet
from ..reports.figures import Row
from ..runs.results import Result, format_accuracy
from .cell import Cell, Outcome
from .paper import VARIANTS
from .plan import Source
from .setting import Setting

RUNS = "runs"  # folder of the trainings


@dataclass(frozen=True)
class Section:
    """One table or figure.

    Attributes:
        rows: its numbers.
        notes: the paragraphs below it.
        failed: cells that it lacks, and why they failed.
        missing: cells that have not been run yet.
        command: what was typed to make it.
        settings: the data and settings that it was made with.
    """

    rows: list[Row]
    notes: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    command: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """All but the rows, for ``report.json``."""
        return {name: value for name, value in asdict(self).items() if name != "rows"}


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
    recipe = {**asdict(setting.recipe), "train": setting.recipe.train.to_json(), "test": setting.recipe.test.to_json()}
    if recipe["started_variants"] == VARIANTS:  # reports from before there were others say nothing of them
        del recipe["started_variants"]
    found = {
        "dataset": setting.dataset, "fingerprint": setting.images.fingerprint(), "recipe": recipe,
        "labelled_ratio": setting.labelled_ratio, "budget": asdict(setting.budget), "training": setting.training,
        "seed": setting.seed, "pretraining": setting.pretraining,
    }  # fmt: skip
    if setting.tuned:  # reports from before there was the choice say nothing of it
        found["tuned"] = True
    if setting.train_once:
        found["train_once"] = True
    if setting.given_start is not None:
        found["start"] = checksum(setting.given_start / "checkpoint", "best")
    settings: dict[str, Any] = json.loads(json.dumps(found))  # as they are read again: lists for tuples
    return settings


def over_seeds(job: Job, sources: dict[int, Source]) -> Row:
    """The mean over the seeds that are there; what was chosen on validation classes is that of the first of them."""
    there = {seed: result for seed, source in sources.items() if (result := job.result(source)) is not None}
    results = list(there.values())
    first = results[0] if results else None
    means, intervals = [one.mean for one in results], [one.interval for one in results if one.interval is not None]
    lacking = [source.cell for seed, source in sources.items() if seed not in there]
    state = "measured" if not lacking else "missing" if any(c not in job.outcomes for c in lacking) else "failed"
    return {
        "accuracy": sum(means) / len(means) if means else None,
        "interval": sum(intervals) / len(intervals) if intervals else None,
        "split_interval": first and first.split_interval, "refinements": first and first.iterations,
        "cluster_multiplier": first and first.cluster_multiplier,
        "seeds": len(means), "lowest": min(means, default=None), "highest": max(means, default=None),
        "by_seed": "; ".join(f"{seed}: {format_accuracy(one.mean, one.interval)}" for seed, one in there.items()),
        "state": state,
    }  # fmt: skip


def _sources(planned: Any) -> Iterator[Source]:
    if isinstance(planned, Source):
        yield planned
    else:
        for part in planned.values():
            yield from _sources(part)


def section_of(job: Job, what: str, rows: list[Row], notes: list[str]) -> Section:
    cells = list(dict.fromkeys(source.cell for source in _sources(job.planned[what])))
    return Section(rows, notes, job.failed(cells), job.missing(cells), job.command, settings_of(job.setting))
