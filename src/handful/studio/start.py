"""Start a studio: check what is given, open the desk and serve it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from ..datasets.files import find_images
from ..datasets.images import quiet
from ..embedders import load_embedder
from ..errors import HandfulError
from ..estimator.head import head_of
from ..labelling.sources import read_labels
from .desk import Desk
from .server import serve

SUFFIX = "-studio"


def run(
    photos: Path,
    out: Path | None,
    labels: Path | None,
    *,
    ready: Callable[[str, Path], None],
    embedder: str,
    head: str | None,
    **options: Any,
) -> None:
    """Serve a studio until Ctrl-C.

    Args:
        photos: folder or archive of images.
        out: folder for the labels; beside the images if None.
        labels: a CSV file to begin with.
        ready: called with the address and the folder of the labels when the page can be opened.
        embedder, head: as in `find_labels`.
        options: ``distractors`` and ``device``; ``host``, ``port`` and ``browser`` of `serve`.
    """
    find_images(photos)  # says what is wrong before the long work
    if labels is not None:
        read_labels(photos, labels)
    place = out_folder(photos) if out is None else out
    if photos.is_dir() and place.resolve().is_relative_to(photos.resolve()):
        raise HandfulError(f"{place} lies among the images in {photos}: choose an --out elsewhere")
    if place.exists() and not place.is_dir():
        raise HandfulError(f"{place} is a file: give a folder for --out")
    desk = Desk(
        photos, place, load_embedder(embedder, options["device"]), labels, head=head_of(embedder, head),
        distractors=options["distractors"],
    )  # fmt: skip
    try:
        # Predictions on a few cores are faster on one thread each: more would wait for each other and for the embedder.
        with quiet(), threadpool_limits(1, user_api="blas"):
            serve(desk, options["host"], options["port"], lambda address: ready(address, place),
                  browser=options["browser"])  # fmt: skip
    finally:
        desk.close()


def out_folder(photos: Path) -> Path:
    """Where labels are kept if no folder is named: beside the images.

    >>> out_folder(Path("/pictures/holidays.zip")).as_posix()
    '/pictures/holidays-studio'
    """
    path = photos.absolute()
    path = path.resolve() if path.name in ("", "..") else path
    return path.with_name(f"{path.name if photos.is_dir() else path.name.split('.')[0] or 'photos'}{SUFFIX}")
