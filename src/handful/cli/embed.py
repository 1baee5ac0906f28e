"""``handful embed``: vectors of very many images, in a folder that is used as X."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import JobFailed
from ..progress import messages, rate_bar
from ..terminal import json_text
from .label import EmbedderName, print_broken
from .options import Device, JsonFlag, check_device, console

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: auto for the one that this machine belongs to, HOST:PORT, or local to start "
        "one here.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Threads, or workers on Ray.  [default: one for each core, or GPU on Ray]")
]
ShardSize = Annotated[int, typer.Option(min=1, max=1 << 20, help="Images of a shard, about.")]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Folders, .zip, .tar (WebDataset), .parquet or .arrow files (Hugging Face), or .txt lists of such; paths "
        "or URLs.",
    ),
]


def embed(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", help="Folder for the vectors: new, empty, or of the same embedder.")],
    embedder: EmbedderName = "efficientnet-lite0",
    ray: Ray = None,
    workers: Workers = None,
    shard_size: ShardSize = 2048,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Embed very many images: vectors in shards, which 'label', 'studio' and the estimator read from disk.

    Each shard is a .npy file of vectors and a .json file with the names of their images. Run the same command again to
    resume, after a kill as well: what is done is not done again, and of a folder that has changed only the part that
    did. Images that cannot be read are named, and the others go on; so are archives that are damaged, and then the exit
    code is 1.

    Example: `handful embed photos/ more.zip shards/*.tar --out vectors`, then
    `handful label photos/ --embedder npy:vectors --labels labels.csv --out labelled`
    """
    from ..embedders.bulk import embed_sources

    if ray is None:
        check_device(device)
    with rate_bar() as bar:
        found = embed_sources(sources, out, embedder, device=device, workers=workers, ray=ray, size=shard_size, bar=bar)
    if as_json:
        content = {
            "images": found.images, "units": found.units, "units_done_before": found.before, "broken": found.broken,
            "problems": found.problems, "seconds": found.seconds, "images_per_second": found.rate, "out": str(out),
        }  # fmt: skip
        typer.echo(json_text(content))
    else:
        before = f"; {found.before:,} of {found.units:,} units were done before" if found.before else ""
        console.print(
            f"{found.images:,} images embedded in {found.seconds:,.1f} s ({found.rate:,.1f}/s){before}.", soft_wrap=True
        )
        if found.removed:
            console.print(f"{found.removed:,} shards of images that have changed were removed.", soft_wrap=True)
    print_broken(found.broken, f"--json names them all, and the .json files in {out}")
    report_problems(found.problems)
    messages.print(f"Written: {out} (use it as npy:{out})", soft_wrap=True)


def report_problems(problems: dict[str, str]) -> None:
    """Name each source that could not be read; then the command has failed, in part."""
    for sentence in problems.values():
        messages.print(sentence, soft_wrap=True)
    if problems:
        raise JobFailed(f"{len(problems):,} of the sources could not be read to their end; all others are done")
