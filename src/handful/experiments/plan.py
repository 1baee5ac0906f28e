"""From the paper's experiments (:mod:`.paper`) to trainings and measurements on a data set.

One training serves every line and figure that can use its weights: TapNet's also TapNet + Semi-Sup. Inference, TAC's
also Table 3 and three figures. A method that sees no unlabelled images in training is trained once, and measured with
and without distractors. Everything is kept in run folders, so a reproduction can be stopped at any point, and another
table in the same folder reuses what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import HandfulError
from ..runs.config import RunConfig
from ..runs.results import Result, measured
from ..sampling import EpisodeSpec
from .cell import Cell, Measurement
from .paper import START, Column, System, TableSpec
from .setting import Setting


@dataclass(frozen=True)
class Source:
    """Where a number comes from: a measurement of a run."""

    cell: str
    measurement: Measurement

    def result(self, folder: Path) -> Result | None:
        """None if it has not been measured, because its training failed."""
        return measured(folder / self.cell).get(self.measurement.key())

    def found(self, folder: Path) -> Result:
        """The same where the cell is known to have ended well."""
        return measured(folder / self.cell)[self.measurement.key()]


class Plan:
    """All trainings and measurements that some tables and figures need, each once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._cells: dict[str, Cell] = {}

    @property
    def cells(self) -> list[Cell]:
        """What needs no training first, then longest first, so that no core waits for the last one alone."""
        first = START["classifier"].method
        return sorted(self._cells.values(), key=lambda cell: (cell.config.method != first, -cell.config.train.images))

    def ask(
        self,
        system: System,
        shots: int,
        distractors: bool,
        test: EpisodeSpec | None = None,
        seed: int | None = None,
        share: float | None = None,
    ) -> Source:
        """Plan a measurement.

        Args:
            system, shots, distractors: line and column of a table.
            test: another episode than that of the column.
            seed: another one of the training.
            share: of distractors in training, in realistic episodes.
        """
        setting = self.setting
        config = setting.config(system, shots, distractors, seed, share)
        protocol = setting.protocol(test or setting.spec(shots, distractors))
        wanted = Measurement(protocol, system.method, system.iterations, setting.tuned)
        return self.add(self.name(system, config), config, wanted)

    def ask_column(self, system: System, column: Column, seed: int) -> Source:
        """Plan the measurement of a line of a table in one of its columns."""
        shots, distractors = column
        trained = self.setting.trained_with_distractors(system, distractors)
        return self.ask(system, shots, trained, self.setting.spec(shots, distractors), seed)

    def name(self, system: System, config: RunConfig) -> str:
        """Of the cell of a system's training."""
        kind = "-".join(filter(None, (system.training, system.variant)))
        name = f"{kind}-{config.validation.shots}-shot-{config.train.ways}-way"
        if config.train.distractor_ways:
            name += "-distractors"
        if config.train.realistic_total is not None:
            name += f"-share-{round(100 * config.train.realistic_share)}"
        if config.seed != self.setting.seed and system.training != START["classifier"].method:
            name += f"-seed-{config.seed}"
        return name

    def add(self, name: str, config: RunConfig, wanted: Measurement) -> Source:
        """Plan a measurement of a cell."""
        given = self.setting.given_start is not None and config.method == START["classifier"].method
        old = self._cells.get(name, Cell(name, config, (), given))
        self._cells[name] = replace(old, measurements=tuple(dict.fromkeys((*old.measurements, wanted))))
        return Source(name, wanted)


def plan_start(plan: Plan) -> Source:
    """The classifier that all models start from."""
    return plan.ask(START["classifier"], min(plan.setting.recipe.shots), False)


def columns(setting: Setting, table: TableSpec) -> list[Column]:
    """The columns of a table that are wanted."""
    found = [(k, others) for others in table.distractors if others in setting.distractors for k in setting.shots]
    if not found:
        raise HandfulError(f"the table '{table.title}' has no columns with distractors: leave out --distractors")
    return found


def systems(setting: Setting, table: TableSpec) -> list[System]:
    """The lines of a table that are wanted."""
    lines = table.lines(setting.recipe.train.ways, len(setting.images.class_names), start=setting.start_has_lines)
    if setting.given_start is not None:  # nothing was published with it
        lines = [system for system in lines if not system.published_ways]
    found = [s for s in lines if setting.methods is None or s.method in setting.methods]
    if not found:
        raise HandfulError(f"the table has no line of {', '.join(setting.methods or ())}")
    return found


def plan_table(plan: Plan, table: TableSpec) -> dict[System, dict[Column, dict[int, Source]]]:
    """The measurements behind a table, by seed of the training."""
    setting = plan.setting
    return {
        system: {
            column: {seed: plan.ask_column(system, column, seed) for seed in setting.seeds_of(system)}
            for column in columns(setting, table)
        }
        for system in systems(setting, table)
    }
