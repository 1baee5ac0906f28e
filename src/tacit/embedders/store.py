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


def embed_images(embedder: Embedder, items: Sequence[Item], bar: Bar = no_bar) -> tuple[Vectors, dict[int, str]]:
    """The vectors of images, those that are known from the store.

    Returns:
        (n, dim) float32 of the images that can be read, in order; and the others by their number, with the reason.
    """
    digests: list[bytes] = []
    broken: dict[int, str] = {}
    tick = bar("looking at the images", len(items))
    with ThreadPoolExecutor(WORKERS) as pool:
        for number, found in enumerate(pool.map(_digest, items)):
            if isinstance(found, str):
                broken[number] = found
            digests.append(found if isinstance(found, bytes) else b"")
            tick(1)
    store = Store(embedder)
    known = store.rows()
    first: dict[bytes, int] = {}  # the same image twice is embedded once
    for number, digest in enumerate(digests):
        if number not in broken:
            first.setdefault(digest, number)
    missing = [number for digest, number in first.items() if digest not in known]
    if missing:
        try:
            broken |= _embed(embedder, store, items, missing, digests, bar)
        except KeyboardInterrupt:
            raise Interrupted("stopped while embedding; what was done is kept: run the same command again") from None
        known = store.rows()
    for number, digest in enumerate(digests):
        if digest and first[digest] in broken:
            broken[number] = broken[first[digest]]
    rows = [known[digest] for number, digest in enumerate(digests) if number not in broken]
    return store.read(rows), dict(sorted(broken.items()))


def embed_files(
    embedder: Embedder | Precomputed, files: Files, names: Sequence[str], bar: Bar = no_bar
) -> tuple[Vectors, list[str], dict[str, str]]:
    """Vectors (n, dim) of image files; the names they belong to; and those that cannot be read, with the reason."""
    if isinstance(embedder, Precomputed):
        return embedder.rows(names), list(names), {}
    vectors, broken = embed_images(embedder, [Item(name, 0, partial(files.read, name)) for name in names], bar)
    kept = [name for number, name in enumerate(names) if number not in broken]
    return vectors, kept, {names[number]: reason for number, reason in broken.items()}


class Store:
    """The vectors of one embedder."""

    def __init__(self, embedder: Embedder) -> None:
        slug = re.sub(r"[^\w.-]+", "-", embedder.name)[-60:].strip("-.")
        key = hashlib.sha256(embedder.key.encode()).hexdigest()[:16]
        self.folder, self.dim = cache_root() / "vectors" / f"{slug}-{key}", embedder.dim
        self.digests_path, self.vectors_path = self.folder / "digests.bin", self.folder / "vectors.bin"

    def rows(self) -> dict[bytes, int]:
        """Where the vector of each image is, by the digest of its file."""
        content = self.digests_path.read_bytes() if self.digests_path.exists() else b""
        return {content[32 * row : 32 * row + 32]: row for row in range(self._count(len(content)))}

    def read(self, rows: Sequence[int]) -> Vectors:
        if not len(rows):
            return np.zeros((0, self.dim), dtype=np.float32)
        table = np.memmap(self.vectors_path, dtype="<f4", mode="r").reshape(-1)
        return np.asarray(table[: len(table) // self.dim * self.dim].reshape(-1, self.dim)[list(rows)])

    def add(self, digests: Sequence[bytes], vectors: Vectors) -> None:
        with self._alone():
            size = self.digests_path.stat().st_size if self.digests_path.exists() else 0
            count = self._count(size)  # after a kill there may be more vectors than digests, or half of one
            for path, end, content in (
                (self.vectors_path, 4 * self.dim * count, np.ascontiguousarray(vectors, dtype="<f4").tobytes()),
                (self.digests_path, 32 * count, b"".join(digests)),
            ):
                with path.open("r+b" if path.exists() else "w+b") as file:
                    file.truncate(end)
                    file.seek(end)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())

    def _count(self, size: int) -> int:
        there = self.vectors_path.stat().st_size if self.vectors_path.exists() else 0
        return min(size // 32, there // (4 * self.dim))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                yield


def _embed(
    embedder: Embedder, store: Store, items: Sequence[Item], missing: list[int], digests: list[bytes], bar: Bar
) -> dict[int, str]:
    """Embed images and keep their vectors; gives those that cannot be decoded, with the reason."""
    broken: dict[int, str] = {}
    tick = bar(f"embedding with {embedder.name}", len(missing))
    listing = Listing((), len(missing), lambda start: iter([items[number] for number in missing]))
    decoded = zip(missing, pictures(listing, embedder.image_size, embedder.channels), strict=True)
    size = max(1, BATCH_PIXELS // embedder.image_size**2)
    while batch := list(islice(decoded, size)):
        broken |= {number: picture for number, (_, picture) in batch if isinstance(picture, str)}
        sound = [(number, picture.pixels) for number, (_, picture) in batch if not isinstance(picture, str)]
        if sound:
            vectors = embedder.embed(np.stack([pixels for _, pixels in sound]))
            if not np.isfinite(vectors).all():
                bad = sound[int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])][0]
                raise TacitError(f"the embedder {embedder.name} gives no finite vector for {items[bad].name}")
            store.add([digests[number] for number, _ in sound], vectors)
        tick(len(batch))
    return broken


def _digest(item: Item) -> bytes | str:
    try:
        payload = item.read()
    except BrokenImage as error:
        return str(error)
    if isinstance(payload, bytes):
        return hashlib.sha256(payload).digest()
    return hashlib.sha256(repr((payload.shape, payload.dtype)).encode() + payload.tobytes()).digest()
