"""From images to the vectors of an embedder, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..datasets.base import Bar, no_bar
from ..datasets.files import Folder, find_images, is_image
from ..errors import HandfulError, JobFailed
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
    images: str | Path | Sequence[str | Path],
    embedder: str = DEFAULT,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    device: str = "auto",
    bar: Bar = no_bar,
) -> Embedded:
    """Turn images into the vectors of an embedder; vectors that were computed before come from the cache.

    The vectors are *raw*: what :class:`handful.TACClassifier` takes as X. It maps them itself; its ``unit_vectors`` are
    *mapped*, and are for looking at, not for giving back.

    Args:
        images: a folder, with folders in it; an archive; or image files, one or a list. With ``out``, any sources of
            ``handful embed``.
        embedder: a name of :mod:`handful.embedders`: ``efficientnet-lite0``, ``run:RUN``, ``onnx:FILE``, ...
        out: a folder to write the vectors to, shard by shard, for more images than memory holds. Called again, it goes
            on. ``vectors`` is then the :class:`handful.VectorFolder`, which stays on disk.
        workers, ray: for ``out``: threads, or workers on the Ray cluster at this address (``auto``, ``local``).
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        bar: a progress bar.

    Returns:
        ``vectors, names, broken``; see :class:`Embedded`.

    Raises:
        HandfulError: if there are no images, or the embedder cannot be had. An image that cannot be read is no error.
            With ``out``, also if a source cannot be read to its end, after all others are done.
    """
    if out is not None:
        return _embedded(images, out, embedder, workers=workers, ray=ray, device=device, bar=bar)
    if workers is not None or ray is not None:
        raise HandfulError("workers and ray are for very many images: give a folder, out=, for their vectors")
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


def _embedded(images: str | Path | Sequence[str | Path], out: str | Path, embedder: str, **how: Any) -> Embedded:
    from .bulk import embed_sources
    from .vectors import VectorFolder

    found = embed_sources([images] if isinstance(images, str | Path) else images, out, embedder, **how)
    if found.problems:
        raise JobFailed(f"{' '.join(found.problems.values())} (all others are done)")
    folder: Any = VectorFolder(out)
    return Embedded(folder, list(folder.names), found.broken | dict(folder.broken))
