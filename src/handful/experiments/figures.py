"""The figures of a reproduction: of each what it needs, its numbers, and how it is shown.

To add one, write its drawing in :mod:`..reports.figures` and an entry in `FIGURES`. Functions here import what they
need when they are called, because ``handful reproduce --help`` lists the figures and must not wait for PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..datasets.base import Bar
    from ..reports.figures import Row
    from ..reports.page import Entry
    from .job import Job
    from .paper import System
    from .plan import Plan, Source

    Table = tuple[list[str], list[list[Entry | str]]]
    Numbers = tuple[list[Row], list[str]]  # the rows of the figure, and the paragraphs below it
    Shares = dict[int, dict[System, dict[float, Source]]]  # by shots, system and share of distractors

TSNE_UNLABELLED, TSNE_STEPS = 80, (1, 2, 3, 4)  # as in the paper's figure
TRAINED_ONCE = "The weights are those of the table's columns with distractors, for every share."
TRAINED_PER_SHARE = "Each point has a model of its own, trained on realistic episodes with that share."


@dataclass(frozen=True)
class FigureSpec:
    """One figure.

    Attributes:
        title: above it.
        description: what it shows, for readers who do not see it.
        drawing: the function of :mod:`..reports.figures` that draws it from rows.
        plan: asks for the measurements that it needs: sources, in dicts of any depth.
        numbers: its rows and notes, of a job and of what ``plan`` gave; measurements may be missing.
        late: whether the numbers are computed from images, which takes a while: once, when all cells have ended.
        in_all: whether ``reproduce all`` makes it.
        table: header and lines of a table of the same rows above it, if there is one.
    """

    title: str
    description: str
    drawing: str
    plan: Callable[[Plan], Any]
    numbers: Callable[[Job, Any, Bar], Numbers]
    late: bool = False
    in_all: bool = True
    table: Callable[[Sequence[Row]], Table] | None = None

    def draw(self, rows: Sequence[Row]) -> Figure:
        from ..reports import figures

        drawn: Figure = getattr(figures, self.drawing)(rows)
        return drawn


def _plan_tac(plan: Plan) -> Source:
    """The run of TAC whose spaces and soft labels are shown."""
    from .paper import SYSTEMS

    return plan.ask(SYSTEMS["tac"], plan.setting.fewest, False)


def _tsne(job: Job, source: Source, bar: Bar) -> Numbers:
    from .curves import first_episode

    setting = job.setting
    if job.result(source) is None:
        return [], []
    wanted = replace(setting.spec(setting.fewest, False), unlabelled=TSNE_UNLABELLED)
    rows, spec = first_episode(
        job.runs / source.cell, job.images["test"], setting.labelled_ratio, setting.seed, wanted, TSNE_STEPS
    )
    note = (
        f"t-SNE of the first test episode of seed {setting.seed}: {spec.shots} labelled and {spec.unlabelled} "
        "unlabelled images of each class. Coloured points lie in their own class's cluster (how many is written "
        "beside), grey ones in another's."
    )
    return rows, [note]


def _plan_iterations(plan: Plan) -> dict[System, Source]:
    """TAC and the soft k-means variants, at the fewest shots, without distractors."""
    from ..runs.episodes import MOST_ITERATIONS
    from .paper import OVER_REFINEMENTS

    named = (replace(system, iterations=MOST_ITERATIONS) for system in OVER_REFINEMENTS)
    column = (plan.setting.fewest, False)
    return {system: plan.ask_column(system, column, plan.setting.seed) for system in named}


def _iterations(job: Job, planned: dict[System, Source], bar: Bar) -> Numbers:
    """TAC against the variant of soft k-means that is best at its own best number of refinements."""
    from ..reports.figures import iteration_rows
    from .paper import SOFT_KMEANS

    setting = job.setting
    results = {system: job.result(source) for system, source in planned.items()}
    there = {system: result for system, result in results.items() if result is not None}
    ours = [system for system in there if system.method not in SOFT_KMEANS]
    rivals = sorted((s for s in there if s.method in SOFT_KMEANS), key=lambda s: -max(there[s].by_iteration))
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
    return rows, [note]


def _entropy(job: Job, source: Source, bar: Bar) -> Numbers:
    from .curves import entropy_rows

    rows: list[Row] = []
    if job.result(source) is not None:
        rows = entropy_rows(job.runs / source.cell, job.images["test"], source.measurement.protocol, bar)
    note = (
        "The same weights of TAC; unlabelled images are clustered in M or in the embedding space, queries are "
        f"classified in M. Cross-entropy is that of the soft labels which the refinement used. {job.setting.caption()}"
    )
    return rows, [note]


def _plan_distractors(plan: Plan, per_share: bool = False) -> Shares:
    """Realistic episodes with a growing share of distractors, by shots.

    The weights are those of the table's columns with distractors or, if ``per_share``, trained with the share that is
    tested.
    """
    from .paper import SHARES, UNDER_DISTRACTORS
    from .setting import realistic

    setting = plan.setting
    found: Shares = {}
    for shots in setting.shots:
        for system in UNDER_DISTRACTORS:
            trained = per_share or setting.trained_with_distractors(system, True)
            found.setdefault(shots, {})[system] = {
                share: plan.ask(
                    system, shots, trained, realistic(replace(setting.recipe.test, shots=shots), share),
                    share=share if per_share else None,
                )
                for share in SHARES
            }  # fmt: skip
    return found


def _distractors(job: Job, planned: Shares, bar: Bar, trained: str = TRAINED_ONCE) -> Numbers:
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
        f"distractors from all other classes. {trained} {job.setting.caption()}"
    )
    return rows, [note]


def _plan_beyond(plan: Plan) -> Any:
    from .beyond import plan_beyond

    return plan_beyond(plan)


def _beyond(job: Job, planned: Any, bar: Bar) -> Numbers:
    from .beyond import beyond

    return beyond(job, planned, bar)


def _beyond_table(rows: Sequence[Row]) -> Table:
    from .beyond import table

    return table(rows)


FIGURES = {
    "tsne": FigureSpec(
        title="The space after each refinement",
        description="t-SNE of one episode",
        drawing="tsne",
        plan=_plan_tac,
        numbers=_tsne,
        late=True,
    ),
    "iterations": FigureSpec(
        title="Accuracy against refinements",
        description="accuracy against refinements",
        drawing="accuracy_by_iteration",
        plan=_plan_iterations,
        numbers=_iterations,
    ),
    "entropy": FigureSpec(
        title="Clustering in M, and in the embedding space",
        description="accuracy and cross-entropy against refinements",
        drawing="entropy",
        plan=_plan_tac,
        numbers=_entropy,
        late=True,
    ),
    "distractors": FigureSpec(
        title="Accuracy under a growing share of distractors",
        description="accuracy against the share of distractors",
        drawing="accuracy_by_share",
        plan=_plan_distractors,
        numbers=_distractors,
    ),
    "distractors-per-share": FigureSpec(
        title="Accuracy under a growing share of distractors, trained with that share",
        description="accuracy against the share of distractors, a training for each",
        drawing="accuracy_by_share",
        plan=partial(_plan_distractors, per_share=True),
        numbers=partial(_distractors, trained=TRAINED_PER_SHARE),
        in_all=False,
    ),
    "beyond": FigureSpec(
        title="The paper's systems and later methods, from one start (%)",
        description="accuracy against the cost of an episode",
        drawing="accuracy_by_cost",
        plan=_plan_beyond,
        numbers=_beyond,
        in_all=False,
        table=_beyond_table,
    ),
}
