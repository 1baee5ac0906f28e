"""``handful compare``: the estimator and its rivals on one's own images or vectors."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..errors import HandfulError
from ..progress import messages, progress_bar
from .label import EmbedderName
from .options import Device, Seed, check_device, console


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...", help="Folders or .zip files with a folder for each class, or .npz files with X and y."
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
    from ..estimator.benchmark import OURS
    from ..estimator.own_rival import read_own_rival
    from ..estimator.rivals import choose, compared
    from ..estimator.tasks import SHAPES, Case
    from ..experiments.comparison import LABELS, check_out, read_source, summary, write_comparison

    check_device(device)
    if unknown := sorted(set(shapes or ()) - set(SHAPES)):
        raise HandfulError(f"--shape '{unknown[0]}': choose from {', '.join(SHAPES)}")
    chosen = compared() if rivals is None else choose(rivals)
    for text in own_rivals or ():
        own = read_own_rival(text)
        if own.name in {*chosen, OURS}:
            raise HandfulError(f"--rival: there is a classifier '{own.name}' already: choose another name")
        chosen[own.name] = own
    check_out(out)
    shapes = list(dict.fromkeys(shapes or SHAPES[:2]))
    cases = [Case(count, shape, foreign, rows) for shape in shapes for count in dict.fromkeys(labels or LABELS)]
    with progress_bar() as bar:
        named = {path.stem if path.suffix else path.name: read_source(path, embedder, device, bar) for path in sources}
        if len(named) < len(sources):
            raise HandfulError("two sources have the same name: rename one of them")
        command = shlex.join(["handful", *sys.argv[1:]])
        lines = write_comparison(named, cases, out, command, draws=draws, seed=seed, rivals=chosen, jobs=jobs, bar=bar)
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
    messages.print(f"Written: {out} (report.html, comparison.csv)", soft_wrap=True)
