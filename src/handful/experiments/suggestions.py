"""``handful compare --suggestions``: what labels of the suggested images are worth, against other choices: a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..estimator.benchmark import OURS
from ..estimator.kept import Kept
from ..estimator.learning import PER_ROUND, RANDOM, ROUNDS, WAYS, Curve, learning_curves
from ..estimator.tasks import Case
from ..publish import check_free, publish
from ..reports.figures import accuracy_by_round
from ..reports.page import Report, csv_bytes, provenance
from .comparison import Source, described

STARTS = (1, 2)  # labels a class


def check_suggestions_out(out: Path) -> None:
    """Whether the report may be written there; before the work."""
    check_free(out, ["report.html", "report.md", "suggestions.csv"])


def write_suggestions(
    sources: dict[str, Source], cases: Sequence[Case], out: Path, command: str, *, draws: int = 30, seed: int = 0,
    **how: Any,
) -> list[Curve]:  # fmt: skip
    """Measure the learning curves, and write report.html, report.md, suggestions.csv and the picture to ``out``.

    ``how``: ``jobs`` and ``bar`` of :func:`learning_curves`.
    """
    curves = learning_curves(sources, cases, draws=draws, seed=seed, kept=Kept(out), **how)
    report = Report("Which images to label next")
    report.paragraph(
        f"{draws} random draws of each start, the same for all choices. Then {ROUNDS} rounds: {PER_ROUND} images are "
        "chosen, get their true labels, and the estimator learns from them too. Accuracy (%): of the images that are "
        "still unlabelled. Ahead: of a random choice, mean over rounds, ± half of the 95 % interval over draws."
    )
    report.table(
        ["source, start", *(f"{way}: ahead" for way in WAYS if way != RANDOM), *(f"{way}: at the end" for way in WAYS)],
        [_line(curves, *key) for key in dict.fromkeys((one.source, one.case) for one in curves)],
    )
    rows = [
        {"source": one.source, "shape": _start(one.case), "method": one.way, "labels": PER_ROUND * number,
         "accuracy": 100 * float(one.mean[number]), "interval": 100 * float(one.interval[number]),
         "ahead": 100 * float(one.ahead[number]), "ahead_interval": 100 * float(one.ahead_interval[number]),
         "draws": one.draws}
        for one in curves for number in range(ROUNDS + 1)
    ]  # fmt: skip
    report.section("Learning curves")
    report.picture(accuracy_by_round(rows, OURS), "accuracy against labels that were added", "curves", rows)
    report.section("Where this comes from")
    report.facts(provenance(command, described(sources)))
    report.attach("suggestions.csv", csv_bytes(rows))
    publish(out, report.files())
    return curves


def mean_ahead(curves: Sequence[Curve], way: str) -> float:
    """How far a way to choose is ahead of a random choice (points), mean over rounds and starts."""
    return 100 * float(np.mean([one.gain for one in curves if one.way == way]))


def _start(case: Case) -> str:
    return f"{case.shape}, {case.labels} a class"


def _line(curves: Sequence[Curve], source: str, case: Case) -> list[str]:
    own = {one.way: one for one in curves if (one.source, one.case) == (source, case)}
    ahead = [own[way] for way in WAYS if way != RANDOM]
    return [
        f"{source}, {_start(case)}",
        *(f"{100 * one.gain:+.1f} ± {100 * one.gain_interval:.1f}" for one in ahead),
        *(f"{100 * own[way].mean[-1]:.1f}" for way in WAYS),
    ]
