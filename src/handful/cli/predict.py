"""``handful predict``: label further images with a model that was saved."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import HandfulError
from ..progress import messages, progress_bar, rate_bar
from ..terminal import json_text, printable
from .embed import Ray, Sources, Workers, report_problems
from .label import print_broken, print_counts
from .options import Device, JsonFlag, check_device, console

if TYPE_CHECKING:
    from ..labelling.predict import Batch


def predict(
    sources: Sources,
    model: Annotated[
        Path, typer.Option("--model", help="model.safetensors of 'handful label', or the folder that it is in.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File to write, .csv or .jsonl; or a folder, for many tables. Without it, the table goes to standard "
            "output.",
        ),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            help="Where the embedder of the model is now, if it was moved: run:FOLDER, onnx:FILE; for vectors from a "
            "file npy:FILE. Another embedder is refused."
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="Of tables in a folder: parquet or csv.")] = "parquet",
    vectors: Annotated[
        Path | None, typer.Option(help="Also keep the vectors, in this folder, as 'handful embed' does.")
    ] = None,
    ray: Ray = None,
    workers: Workers = None,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Label further images with a model of 'handful label': the same columns as in predictions.csv.

    Nothing is learned, so each image gets the same label whatever it comes with. Images are embedded with the embedder
    that the model was made with, in batches; those that cannot be read are named, and the others go on.

    With a folder for --out, there may be any number of images in any sources that 'handful embed' takes, or a folder of
    vectors that it wrote; run the same command again to resume.

    Example: `handful predict new-photos/ --model labelled/model.safetensors --out predictions.csv`, or
    `handful predict shards/*.tar --model labelled --out predictions --ray auto`
    """
    from ..datasets.base import no_bar
    from ..labelling import predict_images
    from ..labelling.export import csv_part
    from ..labelling.prediction import DOUBTFUL, as_row

    if ray is None:
        check_device(device)
    if out is not None and (not out.suffix or (out.is_dir() and out.suffix.lower() not in (".csv", ".jsonl"))):
        how = {"workers": workers, "ray": ray, "device": device, "embedder": embedder}
        _predict_shards(sources, model, out, form, vectors, how, as_json)
        return
    if len(sources) > 1 or ray or workers or vectors:
        raise HandfulError("several sources, --ray, --workers and --vectors write many tables: give a folder for --out")
    images = Path(sources[0])
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


def _predict_shards(
    sources: list[str], model: Path, out: Path, form: str, vectors: Path | None, how: dict[str, Any], as_json: bool
) -> None:
    from ..labelling.predict_shards import predict_sources
    from ..labelling.prediction import DOUBTFUL

    with rate_bar() as bar:
        found, outcome = predict_sources(sources, model, out, vectors=vectors, form=form, bar=bar, **how)
    if as_json:
        content = {
            "images": found.images, "counts": found.counts, "none": found.none, "doubtful": found.doubtful,
            "threshold": found.threshold, "broken": found.broken, "problems": outcome.problems, "model": str(model),
            "units": outcome.units, "units_done_before": outcome.before, "out": str(out),
        }  # fmt: skip
        typer.echo(json_text(content))
    else:
        print_counts(found.counts, found.none)
        console.print(f"{found.doubtful:,} labels are doubtful (less than {DOUBTFUL:.0%} sure).", soft_wrap=True)
    print_broken(found.broken, f"--json names them all, and the .json files in {out}")
    report_problems(outcome.problems)
    messages.print(f"Written: {out} ({outcome.images:,} images in {outcome.seconds:,.1f} s)", soft_wrap=True)
