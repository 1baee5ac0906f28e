"""``reproduce beyond``: the paper's systems and the methods that came after it, from one common start, in one table.

Methods with nothing to learn use the vectors of the start as they are. Those with parameters are trained from it, all
by the same plan. Every line gets the same number of trials on validation classes (`runs.tuning.search`), for each
column: 1 or 5 shots, without or with distractors, balanced or uneven unlabelled sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import HandfulError
from ..methods import method_class
from ..reports.page import Entry, ranks
from ..runs.results import format_accuracy
from ..runs.tuning import TRIAL_EPISODES
from .cell import Measurement
from .job import over_seeds
from .paper import LATER, START, SYSTEMS, System

if TYPE_CHECKING:
    from ..datasets.base import Bar
    from ..reports.figures import Row
    from ..sampling import EpisodeSpec
    from .job import Job
    from .plan import Plan, Source
    from .setting import Setting

    Column = tuple[int, bool, bool]  # shots, whether there are distractors, whether the unlabelled set is uneven
    Planned = dict[System, dict[Column, dict[int, Source]]]

CONCENTRATION = 2.0  # of the Dirichlet distribution of uneven sets, as in Veilleux et al. (alpha-TIM)
BY_COSINES = {"cosine": True, "scale": 10.0}
# Methods that need nothing but the vectors of the start, and their options.
UNTRAINED: dict[str, dict[str, Any]] = {
    "pn": BY_COSINES,
    "matching": {},
    "soft-kmeans": BY_COSINES,
    "tac-free": {},
    "bd-cspn": {},
    "laplacian-shot": {},
    "pt-map": {},
    "paddle": {},
    "alpha-tim": {},
    "epnet": {},
    "ilpc": {},
    "ici": {},
}
ADAPTING_BACKBONE = ("maml",)  # an episode takes about a second: only if it is asked for


def lines(setting: Setting) -> list[System]:
    """The lines of the table, those that need no training first."""
    named = setting.methods or ()
    free = {**UNTRAINED, **{method: {} for method in ADAPTING_BACKBONE if method in named}}
    of_start = [
        System(method_class(method).title, method, START["classifier"].method, options=tuple(options.items()))
        for method, options in free.items()
    ]
    others = () if setting.untrained else (*SYSTEMS.values(), *LATER)
    trained = [replace(system, title=f"{system.title}, trained") for system in others]
    found = [s for s in (*START.values(), *of_start, *trained) if setting.methods is None or s.method in named]
    if not found:
        raise HandfulError(f"the table has no line of {', '.join(named)}")
    return found


def spec_of(setting: Setting, column: Column) -> EpisodeSpec:
    shots, distractors, uneven = column
    return replace(setting.spec(shots, distractors), concentration=CONCENTRATION if uneven else None)


def plan_beyond(plan: Plan) -> Planned:
    """The measurements of the table, by line, column and seed of the training."""
    setting = plan.setting
    if not setting.start_has_lines:
        raise HandfulError(
            "beyond compares methods from one start: give --start, a run of 'handful train --method classifier', or "
            "--pretrain"
        )
    columns = [(shots, others, uneven) for shots in setting.shots for others in setting.distractors
               for uneven in (False, True)]  # fmt: skip
    return {
        system: {column: {seed: _ask(plan, system, column, seed) for seed in setting.seeds_of(system)}
                 for column in columns}
        for system in lines(setting)
    }  # fmt: skip


def _ask(plan: Plan, system: System, column: Column, seed: int) -> Source:
    shots, distractors, _ = column
    config = plan.setting.config(system, shots, plan.setting.trained_with_distractors(system, distractors), seed)
    name = f"start-{system.method}" if _of_start(system) else plan.name(system, config)
    protocol = plan.setting.protocol(spec_of(plan.setting, column))
    wanted = Measurement(protocol, system.method, trials=plan.setting.trials, options=system.options)
    return plan.add(name, config, wanted)


def _of_start(system: System) -> bool:
    """Whether it uses the backbone of the start as it is."""
    return system.training == START["classifier"].method


def beyond(job: Job, planned: Planned, bar: Bar) -> tuple[list[Row], list[str]]:
    """A row for each line and column, and what stands below the table."""
    rows: list[Row] = []
    for system, sources in planned.items():
        for (shots, distractors, uneven), by_seed in sources.items():
            found = over_seeds(job, by_seed)
            first = next((result for source in by_seed.values() if (result := job.result(source)) is not None), None)
            values = first.values if first else {}
            rows.append({
                "system": system.title, "method": system.method, "shots": shots, "distractors": distractors,
                "uneven": uneven, **{name: found[name] for name in KEPT},
                "milliseconds": 1000 * first.processor_seconds / first.n if first else None,
                "trials": first.trials if first else None,
                "values": "; ".join(f"{name} {value:.4g}" for name, value in values.items()),
                "training_episodes": 0 if _of_start(system) else job.setting.budget.episodes,
            })  # fmt: skip
    return rows, _notes(job.setting)


KEPT = ("accuracy", "interval", "split_interval", "seeds", "lowest", "highest", "state")


def _notes(setting: Setting) -> list[str]:
    test = setting.recipe.test
    episodes = min(TRIAL_EPISODES, setting.budget.splits * setting.budget.test_episodes)
    notes = [
        setting.caption(),
        f"Uneven: the classes' shares of the {test.ways * test.unlabelled} unlabelled images of an episode are drawn "
        f"from a Dirichlet distribution of concentration {CONCENTRATION:g}; those of the distractor classes likewise.",
        f"Tuning: {setting.trials} trials for each line and column, of {episodes} episodes of validation classes each; "
        "a line whose answers depend on no option (classifier, PN, Relation Networks and such) needs none. The chosen "
        "values are in beyond.csv. All lines are semi-supervised: they adapt to the unlabelled images, not to the "
        "queries, which are classified one by one.",
        "ms: milliseconds of processor time of one test episode on stored vectors, with the chosen values. Bold: best "
        "of the column; underlined or in italics: second.",
    ]
    if setting.methods is not None:
        return notes
    if setting.untrained:
        titles = ", ".join(system.title for system in (*SYSTEMS.values(), *LATER))
        notes.append(
            f"Left out (--untrained), as they have parameters or a backbone to train from the start: {titles}."
        )
    notes.append("Left out: MAML, which adapts the backbone in each episode, for about a second (--method maml).")
    return notes


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Entry | str]]]:
    """Header and lines: a column for each setting, accuracies with intervals and the cost of an episode below."""
    columns = list(dict.fromkeys(map(_column, rows)))
    found: dict[str, list[Entry | str]] = {row["system"]: [row["system"]] for row in rows}
    for column in columns:
        cells = [row for row in rows if _column(row) == column]
        for row, rank in zip(cells, ranks([row["accuracy"] for row in cells]), strict=True):
            found[row["system"]].append(_entry(row, rank))
    return ["system", *map(heading, columns)], list(found.values())


def _column(row: Row) -> Column:
    return row["shots"], row["distractors"], row["uneven"]


def heading(column: Column) -> str:
    """The name of a column.

    >>> heading((1, True, True))
    '1-shot, distractors, uneven'
    """
    shots, distractors, uneven = column
    return f"{shots}-shot" + ", distractors" * distractors + ", uneven" * uneven


def _entry(row: Row, rank: str) -> Entry:
    if row["accuracy"] is None:
        return Entry(row["state"])
    notes = [] if row["milliseconds"] is None else [f"{row['milliseconds']:.2g} ms"]
    if row["seeds"] > 1:
        notes.append(f"{row['seeds']} seeds {row['lowest']:.2f} to {row['highest']:.2f}")
    return Entry(format_accuracy(row["accuracy"], row["interval"]), ", ".join(notes), rank)
