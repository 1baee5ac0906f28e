"""``handful studio``: label images in a browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from ..errors import HandfulError
from ..progress import messages
from .label import Distractors, EmbedderName, HeadName
from .options import Device, check_device


def studio(
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of images (with folders in it), or a .zip.")],
    labels: Annotated[
        Path | None, typer.Option(help="CSV file with the columns path and label, to begin with; read in once.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder where the labels are kept and exported to. Default: PHOTOS-studio, beside PHOTOS."),
    ] = None,
    embedder: EmbedderName = "efficientnet-lite0",
    model: Annotated[
        str | None, typer.Option(help="A run folder or a name of 'handful models': short for --embedder run:MODEL.")
    ] = None,
    head: HeadName = "none",
    distractors: Distractors = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: one that is free.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any other than the default lets other machines in.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Whether to open the page in a browser.")] = True,
    device: Device = "auto",
) -> None:
    """Label your images in a browser: every label teaches the rest.

    Opens a page on this machine that shows the images, grouped by likeness. Label a few of each class by keys or mouse;
    after every label all others are labelled anew, and the page says how good that is. Nothing needs the network. Each
    label is on disk before the page shows it; run the same command again to resume. The images are only read.

    With --no-browser, the address of the page is printed on standard output.

    Example: `handful studio photos/`
    """
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise HandfulError(f"the studio needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    from ..studio.start import run

    check_device(device)
    if host not in ("127.0.0.1", "::1", "localhost"):
        messages.print(
            f"--host {host} lets every machine that reaches this one try to open the page. It needs the token, which "
            "is sent unencrypted: use this in a network that you trust only.",
            style="yellow",
            soft_wrap=True,
        )
    chosen = embedder if model is None else f"run:{model}"

    def ready(address: str, kept: Path) -> None:
        if browser:
            messages.print(f"The studio is open at {address}", soft_wrap=True)
        else:
            typer.echo(address)
        messages.print(f"Labels are kept in {kept}. Ctrl-C ends the studio.", soft_wrap=True)

    run(
        photos, out, labels, embedder=chosen, head=None if head == "none" else head, distractors=distractors,
        host=host, port=port, browser=browser, device=device, ready=ready,
    )  # fmt: skip
