"""Vectors computed once: kept by the content of the image and the embedder, so that a second run costs nothing.

A store is a folder per embedder with two files that grow together: ``digests.bin``, 32 bytes per image, and
``vectors.bin``. The vectors of a batch are on disk before their digests are, so whatever has a digest can be trusted,
and embedding that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice

import numpy as np
from filelock import FileLock

from ..datasets.base import Bar, Item, Listing, no_bar
from ..datasets.cache import WORKERS, cache_root, explained, pictures
from ..datasets.files import Files
from ..datasets.images import BrokenImage
from ..errors import Interrupted, TacitError
from .base import Embedder, Vectors
from .precomputed import Precomputed

BATCH_PIXELS = 64 * 224 * 224  # of the images that are embedded together


def embed_files(
    embedder: Embedder | Precomputed, files: Files, names: Sequence[str], bar: Bar = no_bar
) -> tuple[Vectors, list[str], dict[str, str]]:
    """The vectors of image files, those that are known from the store.

    Returns:
        (n, dim) float32; the names that these n belong to; and the images that cannot be read, with the reason.
    """
    if isinstance(embedder, Precomputed):
        return embedder.rows(names), list(names), {}
    broken: dict[str, str] = {}
    digests: dict[str, bytes] = {}
    tick = bar("looking at the images", len(names))
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, found in zip(names, pool.map(lambda name: _digest(files, name), names), strict=True):
            if isinstance(found, str):
                broken[name] = found
            else:
                digests[name] = found
            tick(1)
    store = Store(embedder)
    known = store.rows()
    first = {digest: name for name, digest in reversed(digests.items())}  # the same image twice is embedded once
    missing = [name for digest, name in first.items() if digest not in known]
    if missing:
        try:
            broken |= _embed(embedder, store, files, sorted(missing), digests, bar)
        except KeyboardInterrupt:
            raise Interrupted("stopped while embedding; what was done is kept: run the same command again") from None
        known = store.rows()
    broken |= {name: broken[first[digest]] for name, digest in digests.items() if first[digest] in broken}
    kept = [name for name in names if name not in broken]
    return store.read([known[digests[name]] for name in kept]), kept, {name: broken[name] for name in sorted(broken)}


class Store:
    """The vectors of one embedder."""

    def __init__(self, embedder: Embedder) -> None:
        slug = re.sub(r"[^\w.-]+", "-", embedder.name)[-60:].strip("-.")
        key = hashlib.sha256(embedder.key.encode()).hexdigest()[:16]
        self.folder, self.dim = cache_root() / "vectors" / f"{slug}-{key}", embedder.dim
        self._digests, self._vectors = self.folder / "digests.bin", self.folder / "vectors.bin"

    def rows(self) -> dict[bytes, int]:
        """Where the vector of each image is, by the digest of its file."""
        content = self._digests.read_bytes() if self._digests.exists() else b""
        return {content[32 * row : 32 * row + 32]: row for row in range(self._count(len(content)))}

    def read(self, rows: Sequence[int]) -> Vectors:
        if not len(rows):
            return np.zeros((0, self.dim), dtype=np.float32)
        table = np.memmap(self._vectors, dtype="<f4", mode="r").reshape(-1)
        return np.asarray(table[: len(table) // self.dim * self.dim].reshape(-1, self.dim)[list(rows)])

    def add(self, digests: Sequence[bytes], vectors: Vectors) -> None:
        with self._alone():
            size = self._digests.stat().st_size if self._digests.exists() else 0
            count = self._count(size)  # after a kill there may be more vectors than digests, or half of one
            for path, end, content in (
                (self._vectors, 4 * self.dim * count, np.ascontiguousarray(vectors, dtype="<f4").tobytes()),
                (self._digests, 32 * count, b"".join(digests)),
            ):
                with path.open("r+b" if path.exists() else "w+b") as file:
                    file.truncate(end)
                    file.seek(end)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())

    def _count(self, size: int) -> int:
        there = self._vectors.stat().st_size if self._vectors.exists() else 0
        return min(size // 32, there // (4 * self.dim))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                yield


def _embed(
    embedder: Embedder, store: Store, files: Files, names: list[str], digests: dict[str, bytes], bar: Bar
) -> dict[str, str]:
    """Embed images and keep their vectors; gives those that cannot be decoded, with the reason."""
    broken: dict[str, str] = {}
    tick = bar(f"embedding with {embedder.name}", len(names))
    items = [Item(name, 0, partial(files.read, name)) for name in names]
    decoded = pictures(Listing((), len(items), lambda start: iter(items)), embedder.image_size, embedder.channels)
    size = max(1, BATCH_PIXELS // embedder.image_size**2)
    while batch := list(islice(decoded, size)):
        broken |= {item.name: picture for item, picture in batch if isinstance(picture, str)}
        sound = [(item.name, picture.pixels) for item, picture in batch if not isinstance(picture, str)]
        if sound:
            vectors = embedder.embed(np.stack([pixels for _, pixels in sound]))
            if not np.isfinite(vectors).all():
                bad = sound[int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])][0]
                raise TacitError(f"the embedder {embedder.name} gives no finite vector for {bad}")
            store.add([digests[name] for name, _ in sound], vectors)
        tick(len(batch))
    return broken


def _digest(files: Files, name: str) -> bytes | str:
    try:
        return hashlib.sha256(files.read(name)).digest()
    except BrokenImage as error:
        return str(error)
