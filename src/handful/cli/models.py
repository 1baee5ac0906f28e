"""``handful models`` and ``handful export``: models that come with the package, and how to make one of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from .options import JsonFlag, console


def models(as_json: JsonFlag = False) -> None:
    """List the trained models that come with handful; 'evaluate' and 'demo --model' take their names."""
    from ..embedders.shipped import CARD, model_facts, model_folder
    from ..embedders.shipped import models as names
    from ..runs.results import format_accuracy

    rows: list[dict[str, Any]] = [
        {**model_facts(folder), "card": str(folder / CARD)} for folder in map(model_folder, names())
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(Column("name", no_wrap=True), "method", "data set", "shots", "accuracy (%)", "trained on", box=None)
    for row in rows:
        first = next(iter(row["measured"]), None)
        accuracy = format_accuracy(first["mean"], first["interval"]) if first else "not measured"
        table.add_row(
            row["name"], row["title"], row["dataset"], str(row["shots"]), accuracy, f"{row['episodes']:,} episodes"
        )
    console.print(table)
    console.print(
        "Accuracy on test classes, ± 95 % interval over episodes; what was measured, and the limits, are in the cards: "
        f"{Path(rows[0]['card']).parents[1]}",
        soft_wrap=True,
    )


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder of 'handful train', or a model's name.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make; must not exist, or be empty.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: that of the folder.")] = None,
    about: Annotated[
        str | None, typer.Option(help="What the images show, in a line for the card. Default: the data set's summary.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the weights, for the card. Default: Apache-2.0.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Export a run as a small folder to share: the best weights, the settings, and a model card.

    The card (CARD.md) says what it was trained on and how, what 'handful evaluate' or 'handful grid' measured, and its
    limits. The folder can be used wherever a run folder can. Where the training's files were is not in it.

    Example: `handful export runs/photos --out photo-model --about "our 40 kinds of moth"`
    """
    from ..embedders.shipped import CARD, model_folder
    from ..runs.export import export_run

    facts = export_run(model_folder(run), out, name=name, about=about, licence=licence)
    if as_json:
        typer.echo(json.dumps({"model": str(out), **facts}, indent=2))
        return
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    console.print(
        f"{facts['name']}: {size / 1000:,.0f} kB in {out}, {len(facts['measured'])} measurements in its "
        f"{CARD}. Next: handful evaluate {out}",
        soft_wrap=True,
    )


def whiten(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder of 'handful train', with its data at hand.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to make; must not exist, or be empty.")],
    directions: Annotated[int, typer.Option(min=1, help="How many directions of the vectors are scaled.")] = 64,
    shrinkage: Annotated[
        float, typer.Option(help="How mildly: the higher, the less is changed. In mean variances of a direction.")
    ] = 10.0,
) -> None:
    """Copy a run, its vectors whitened: less of what images of one training class differ by.

    What varies within all training classes (pose, light, background) varies within new classes too, and misleads
    clustering. The covariance within the classes of the labelled training images says which directions these are; the
    copy scales them down in a last layer of the backbone. Whiten last: episodes that are trained from the copy undo the
    gain. On miniImageNet it is worth two to three points to methods that use unlabelled images, and costs those that
    do not (docs/recipe.md).

    Example: `handful whiten runs/start --out runs/whitened`
    """
    from ..embedders.shipped import model_folder
    from ..progress import progress_bar
    from ..runs.whitening import whiten_run

    with progress_bar() as bar:
        whiten_run(model_folder(run), out, directions=directions, shrinkage=shrinkage, bar=bar)
    console.print(f"Written: {out}. Next: handful evaluate {out}", soft_wrap=True)
