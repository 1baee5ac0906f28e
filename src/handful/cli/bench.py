"""``handful bench``: read options, measure, print a table of ratios, save the plot."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..errors import HandfulError
from ..machine import keep_memory
from ..progress import messages
from .options import JsonFlag, console

KINDS = ("eval", "train", "project", "label", "fit", "embed")
SIZED = ("label", "fit")  # which measure memory


def bench(
    kind: Annotated[
        str, typer.Argument(metavar="[eval|train|project|label|fit|embed]", help="What to measure.")
    ] = "eval",
    out: Annotated[Path, typer.Option("--out", help="Folder for the plot and the JSON.")] = Path("handful-bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each; the median is reported.")] = 5,
    curves: Annotated[
        bool, typer.Option(help="Also measure the time at several sizes, for the plot of 'eval'.")
    ] = True,
    points: Annotated[
        int | None,
        typer.Option(
            min=1000, help="Unlabelled points of the largest task of 'label' or 'fit'.  [default: 300000 or 1000000]"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure speed and memory, compared with straightforward PyTorch loops on the same machine.

    eval: test episodes per second, compared with one episode at a time and a full SVD. train: training images per
    second, compared with an eager loop. project: the null-space projection alone. label: time and memory of one task
    with very many unlabelled points. fit: the same for the estimator's fit and refit, in one thread, beside
    scikit-learn's classifiers; the largest task needs 3 GB of memory. embed: images per second from JPEG files to
    vectors, compared with Pillow and PyTorch.

    Example: `handful bench label --points 1000000`
    """
    from ..bench import BENCHES, draw
    from ..publish import check_free, publish

    if kind not in KINDS:
        raise HandfulError(f"unknown benchmark '{kind}': choose one of {', '.join(KINDS)}")
    if points is not None and kind not in SIZED:
        raise HandfulError("--points is for 'handful bench label' and 'handful bench fit'")
    check_free(out, (f"{kind}.json", f"{kind}.png"))
    if kind not in SIZED:
        keep_memory()
    extra = {"points": points} if kind in SIZED else {}
    with messages.status(f"measuring {kind} ..."):
        result = BENCHES[kind](repeats, curves=curves, **extra)
    files = {f"{kind}.json": (json.dumps(result.to_json(), indent=2) + "\n").encode()}
    if result.curves:
        picture = BytesIO()
        draw(result.curves, result.title).savefig(picture, format="png", dpi=130)
        files[f"{kind}.png"] = picture.getvalue()
    publish(out, files)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    console.print(result.title, soft_wrap=True)
    table = Table(*result.rows[0], box=None, header_style="bold")
    for row in result.rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console.print(table)
    for name, fact in result.facts.items():
        console.print(f"{name}: {fact}", soft_wrap=True)
    where = ", ".join(str(out / f"{kind}.{ending}") for ending in ["json", *(["png"] if result.curves else [])])
    console.print(f"Saved: {where}", soft_wrap=True)


def _cell(name: str, value: Any) -> str:
    if name == "ours is faster":
        return f"{value:,.1f} x" if value < 10 else f"{value:,.0f} x"
    if name.startswith("share"):
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < value < 1e-3 else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
