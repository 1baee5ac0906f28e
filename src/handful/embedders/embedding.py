"""From images to the vectors of an embedder, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..datasets.base import Bar, no_bar
from ..datasets.files import Folder, find_images, is_image
from ..errors import HandfulError
from . import DEFAULT, load_embedder
from .base import Vectors
from .store import embed_files


class Embedded(NamedTuple):
    """Images as vectors.

    Attributes:
        vectors: (n, dim) float32, raw: as the embedder gives them.
        names: (n,) of the images that could be read: from the top of the folder, or as they were given.
        broken: those that could not be read, with the reason.
    """

    vectors: Vectors
    names: list[str]
    broken: dict[str, str]


def embed(
    images: str | Path | Sequence[str | Path], embedder: str = DEFAULT, *, device: str = "auto", bar: Bar = no_bar
) -> Embedded:
    """Turn images into the vectors of an embedder; vectors that were computed before come from the cache.

    The vectors are *raw*: what :class:`handful.TACClassifier` takes as X. It maps them itself; its ``unit_vectors`` are
    *mapped*, and are for looking at, not for giving back.

    Args:
        images: a folder, with folders in it; an archive; or image files, one or a list.
        embedder: a name of :mod:`handful.embedders`: ``efficientnet-lite0``, ``run:RUN``, ``onnx:FILE``, ...
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        bar: a progress bar.

    Returns:
        ``vectors, names, broken``; see :class:`Embedded`.

    Raises:
        HandfulError: if there are no images, or the embedder cannot be had. An image that cannot be read is no error.
    """
    if isinstance(images, str | Path):
        if not is_image(str(images)) or Path(images).is_dir():
            found = find_images(Path(images))
            vectors, names, broken = embed_files(load_embedder(embedder, device), found.files, found.names, bar)
            return Embedded(vectors, names, found.skipped | broken)
        images = [images]
    files = [str(path) for path in images]
    if not files:
        raise HandfulError("there are no images to embed: give a folder, an archive or a list of image files")
    return Embedded(*embed_files(load_embedder(embedder, device), Folder(Path()), files, bar))
