"""``handful predict``: label further images with a model that was saved."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..progress import messages, progress_bar
from ..terminal import json_text, printable
from .label import print_broken, print_counts
from .options import Device, JsonFlag, check_device, console

if TYPE_CHECKING:
    from ..labelling.predict import Batch


def predict(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of images (with folders in it), or a .zip.")],
    model: Annotated[
        Path, typer.Option("--model", help="model.safetensors of 'handful label', or the folder that it is in.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write, .csv or .jsonl. Without it, the table goes to standard output."),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            help="Where the embedder of the model is now, if it was moved: run:FOLDER, onnx:FILE; for vectors from a "
            "file npy:FILE. Another embedder is refused."
        ),
    ] = None,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Label further images with a model of 'handful label': the same columns as in predictions.csv.

    Nothing is learned, so each image gets the same label whatever it comes with. Images are embedded with the embedder
    that the model was made with, in batches; those that cannot be read are named, and the others go on.

    Example: `handful predict new-photos/ --model labelled/model.safetensors --out predictions.csv`
    """
    from ..datasets.base import no_bar
    from ..labelling import predict_images
    from ..labelling.export import csv_part
    from ..labelling.prediction import DOUBTFUL, as_row

    check_device(device)
    rows: list[dict[str, Any]] = []
    output, started = sys.stdout, False  # while there is a bar, rich has another in its place

    def show(batch: Batch) -> None:
        nonlocal started
        if as_json:
            rows.extend(as_row(one) for one in batch.predictions)
        else:
            text = csv_part(batch.predictions, batch.chances, batch.classes, header=not started).decode()
            typer.echo("\n".join(printable(line) for line in text.split("\n")), nl=False, file=output)
        started = True

    quiet = out is None and not as_json and output.isatty()  # the table itself shows how far it is
    with nullcontext(no_bar) if quiet else progress_bar() as bar:
        found = predict_images(
            images, model, out, embedder=embedder, device=device, each=show if out is None else None, bar=bar
        )
    if as_json:
        content = {
            "images": found.images, "counts": found.counts, "none": found.none, "doubtful": found.doubtful,
            "threshold": found.threshold, "broken": found.broken, "model": str(model),
            **({"predictions": rows} if out is None else {"out": str(out)}),
        }  # fmt: skip
        typer.echo(json_text(content))
        return
    if out is not None:
        print_counts(found.counts, found.none)
        console.print(f"{found.doubtful} labels are doubtful (less than {DOUBTFUL:.0%} sure).", soft_wrap=True)
    print_broken(found.broken, "--json names them all")
    if out is not None:
        messages.print(f"Written: {out}", soft_wrap=True)
