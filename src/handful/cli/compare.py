"""``handful compare``: the estimator and its rivals on one's own images or vectors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ..errors import HandfulError
from ..progress import messages, progress_bar
from .label import EmbedderName
from .options import Device, Seed, check_device, console

if TYPE_CHECKING:
    from ..estimator.benchmark import Line
    from ..estimator.learning import Curve
    from ..estimator.rivals import Rival


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders or .zip files with a folder for each class, folders of their vectors ('handful embed'), or "
            ".npz files with X and y.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html, comparison.csv and the pictures.")],
    labels: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Labels of each class; may be given several times.  [default: 1, 2, 5, 10, 20]"),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help="even: classes of equal size; tail: sizes fall to 1:20; absent: as even, but a third of the classes "
            "have labelled images only. May be given several times.  [default: even, tail]",
        ),
    ] = None,
    foreign: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of unlabelled images that are of other classes, kept out.")
    ] = 0.0,
    rivals: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Only rivals whose name contains one of these, e.g. logistic,lda; '' for none.  [default: all]",
        ),
    ] = None,
    own_rivals: Annotated[
        list[str] | None,
        typer.Option(
            "--rival",
            metavar="NAME=FILE.py:FUNCTION",
            help="A further rival: FUNCTION(x, given, classes) of a Python file of yours, which is run. It gets the "
            "vectors (rows, features) and the labels (rows,), -1 where there is none, and returns probabilities "
            "(rows, classes). May be given several times.",
        ),
    ] = None,
    suggestions: Annotated[
        bool,
        typer.Option(
            "--suggestions",
            help="Compare ways to choose the next images to label, not classifiers: from --labels on (1 and 2), five "
            "rounds of ten labels, as handful label suggests them, at random, and by the smallest margin.",
        ),
    ] = False,
    draws: Annotated[int, typer.Option(min=2, help="Random draws of each case.")] = 30,
    rows: Annotated[int, typer.Option(min=10, help="Images of a draw, at most.")] = 1500,
    embedder: EmbedderName = "efficientnet-lite0",
    jobs: Annotated[int, typer.Option(help="Processes; -1 takes all cores.")] = -1,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Compare the estimator with other classifiers on labelled images of your own.

    A few labels of each class are given, the rest is hidden and predicted; many random draws, the same for all
    classifiers: scikit-learn's, and transductive ones of the few-shot literature. Rivals with a setting choose it by
    cross-validation over the given labels. Run the same command again to resume: every draw is kept in the folder.

    Example: `handful compare photos.zip --labels 1 --labels 5 --out comparison`
    """
    from ..estimator.tasks import SHAPES, Case
    from ..experiments.comparison import LABELS, check_out, read_source, write_comparison
    from ..experiments.suggestions import STARTS, check_suggestions_out, write_suggestions

    check_device(device)
    if unknown := sorted(set(shapes or ()) - set(SHAPES)):
        raise HandfulError(f"--shape '{unknown[0]}': choose from {', '.join(SHAPES)}")
    if suggestions and (rivals is not None or own_rivals):
        raise HandfulError("--suggestions compares choices of images, not classifiers: leave out --rivals and --rival")
    chosen = _rivals(rivals, own_rivals or ())
    (check_suggestions_out if suggestions else check_out)(out)
    shapes = list(dict.fromkeys(shapes or SHAPES[:2]))
    counts = list(dict.fromkeys(labels or (STARTS if suggestions else LABELS)))
    cases = [Case(count, shape, foreign, rows) for shape in shapes for count in counts]
    command = shlex.join(["handful", *sys.argv[1:]])
    with progress_bar() as bar:
        named = {path.stem if path.suffix else path.name: read_source(path, embedder, device, bar) for path in sources}
        if len(named) < len(sources):
            raise HandfulError("two sources have the same name: rename one of them")
        if suggestions:
            curves = write_suggestions(named, cases, out, command, draws=draws, seed=seed, jobs=jobs, bar=bar)
        else:
            lines = write_comparison(
                named, cases, out, command, draws=draws, seed=seed, rivals=chosen, jobs=jobs, bar=bar
            )
    if suggestions:
        _print_choices(curves)
    else:
        _print_classifiers(lines, shapes)
    table = "suggestions.csv" if suggestions else "comparison.csv"
    messages.print(f"Written: {out} (report.html, {table})", soft_wrap=True)


def _rivals(words: str | None, own: Sequence[str]) -> dict[str, Rival]:
    """The rivals that are asked for, those of the user's files last."""
    from ..estimator.benchmark import OURS
    from ..estimator.own_rival import read_own_rival
    from ..estimator.rivals import choose, compared

    chosen = compared() if words is None else choose(words)
    for text in own:
        rival = read_own_rival(text)
        if rival.name in {*chosen, OURS}:
            raise HandfulError(f"--rival: there is a classifier '{rival.name}' already: choose another name")
        chosen[rival.name] = rival
    return chosen


def _print_classifiers(lines: Sequence[Line], shapes: Sequence[str]) -> None:
    from ..experiments.comparison import summary

    for shape in shapes:
        found = [line for line in lines if line.case.shape == shape]
        table = Table(
            Column(f"{shape} classes", no_wrap=True), "accuracy (%)", "mean over classes (%)", "first", box=None
        )
        for name, accuracy, per_class, level, count in summary(found):
            table.add_row(name, f"{100 * accuracy:.1f}", f"{100 * per_class:.1f}", f"{level} of {count}")
        console.print(table)
    console.print(
        "Means over all sources and numbers of labels; first: cases where it is first or within the interval of it."
    )


def _print_choices(curves: Sequence[Curve]) -> None:
    from ..estimator.learning import WAYS
    from ..experiments.suggestions import mean_ahead

    table = Table(Column("points ahead of a random choice", no_wrap=True), *WAYS, box=None)
    for source in [*dict.fromkeys(one.source for one in curves)]:
        own = [one for one in curves if one.source == source]
        table.add_row(source, *(f"{mean_ahead(own, way):+.1f}" for way in WAYS))
    table.add_row("mean", *(f"{mean_ahead(curves, way):+.1f}" for way in WAYS))
    console.print(table)
    console.print("Accuracy on images that are still unlabelled, means over rounds, starts and shapes.")
