"""Vectors computed once: kept by the content of the image and the embedder, so that a second run costs nothing.

A store is a folder of vectors per embedder, in the shards of ``handful embed`` (:mod:`.sealed`), and a log of the
newest ones, which become the next shard. The log is two files that grow together: ``vectors.bin``, and ``digests.bin``,
which has a record per vector: the digest of the image (32 bytes), and a checksum of digest and vector (8 bytes). The
vectors of a batch are on disk before their digests are, so embedding that was killed goes on where it was. Whatever is
read is held against its checksum: a damaged vector counts as not there, and is computed and appended again; the last
one holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ..datasets.base import Bar, Item, Listing, Payload, no_bar
from ..datasets.cache import WORKERS, cache_root, explained, pictures
from ..datasets.files import Files
from ..datasets.images import BrokenImage, printable
from ..errors import HandfulError, Interrupted
from ..progress import messages
from .base import BATCH_PIXELS, Embedder, Pixels, Vectors, checked_vectors
from .origin import Origin
from .precomputed import Precomputed
from .sealed import Sealed

FORMAT = 2  # part of every store's name: raise it when the files, or the pixels that embedders are given, change
DIGEST, CHECKSUM = 32, 8  # bytes
RECORD = DIGEST + CHECKSUM
SEAL = 16384  # vectors in the log from which on they become a shard


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
    first: dict[bytes, int] = {}  # the same image twice is embedded once
    for number, digest in enumerate(digests):
        if number not in broken:
            first.setdefault(digest, number)
    store = Store(embedder) if embedder.key else None
    vectors, known = store.read(list(first)) if store else _nothing(len(first), embedder.dim)  # of different images
    places = {number: place for place, number in enumerate(first.values())}
    missing = [number for number, place in places.items() if not known[place]]
    try:
        for numbers, batch, undecoded in _embedded(embedder, items, missing, digests, bar):
            if store and numbers:
                store.add([digests[number] for number in numbers], batch)
            vectors[[places[number] for number in numbers]] = batch
            broken |= undecoded
    except KeyboardInterrupt:
        kept = "; what was done is kept" if store else ""
        raise Interrupted(f"stopped while embedding{kept}: run the same command again") from None
    for number, digest in enumerate(digests):
        if digest and first[digest] in broken:
            broken[number] = broken[first[digest]]
    rows = [places[first[digest]] for number, digest in enumerate(digests) if number not in broken]
    # Usually they are all there is, in order: then there is no need for a second copy.
    return vectors if rows == list(range(len(vectors))) else vectors[rows], dict(sorted(broken.items()))


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
        slug = re.sub(r"[^\w.-]+", "-", embedder.name, flags=re.ASCII)[-60:].strip("-.")
        about = json.dumps([FORMAT, embedder.key, embedder.dim, embedder.image_size, embedder.channels])
        key = hashlib.sha256(about.encode()).hexdigest()[:16]
        self.folder, self.dim = cache_root() / "vectors" / f"{slug}-{key}", embedder.dim
        self.digests_path, self.vectors_path = self.folder / "digests.bin", self.folder / "vectors.bin"
        self.sealed = Sealed(self.folder, Origin.of(embedder))

    def rows(self) -> dict[bytes, int]:
        """The row of each vector in the log, by the digest of its image."""
        return _rows(self._records())

    def read(self, digests: Sequence[bytes]) -> tuple[Vectors, NDArray[np.bool_]]:
        """Read the vectors (n, dim) of images, and a mask of those that are present and undamaged."""
        vectors, sound = _nothing(len(digests), self.dim)
        records = self._records()
        rows = _rows(records)
        wanted = sorted((rows[digest], place) for place, digest in enumerate(digests) if digest in rows)
        # Not by a memory map: the copy that is used is what is checked, and if another process cuts the file or the
        # disk fails, a read says so, where touching a map would end this process.
        size, content = 4 * self.dim, vectors.reshape(-1).view(np.uint8).data
        with explained(self.folder, "read"), suppress(FileNotFoundError), self.vectors_path.open("rb", 0) as file:
            for row, place in wanted:
                vector = content[size * place : size * (place + 1)]
                file.seek(size * row)
                complete = file.readinto(vector) == size
                checksum = records[RECORD * row + DIGEST : RECORD * (row + 1)]
                sound[place] = complete and _checksum(digests[place], vector) == checksum
        # After the log: what another process makes a shard of meanwhile is there before it leaves the log.
        logged = {place for _, place in wanted}
        with explained(self.folder, "read"):
            listed = self.sealed.read(digests, vectors, sound, logged)
        if damaged := listed - int(sound.sum()):
            messages.print(
                f"{damaged:,} of {listed:,} vectors in {self.folder} are damaged: these images are embedded again",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        return vectors, sound

    def add(self, digests: Sequence[bytes], vectors: Vectors) -> None:
        values = np.ascontiguousarray(vectors, dtype="<f4")
        records = b"".join(digest + _checksum(digest, row.data) for digest, row in zip(digests, values, strict=True))
        with self._alone():
            # After a kill there may be more vectors than digests, or half of one; after damage more digests, which must
            # not find themselves beside the vectors that are written now.
            size = _size(self.digests_path)
            count = min(size // RECORD, _size(self.vectors_path) // (4 * self.dim))
            for path, end, content in (
                *([(self.digests_path, RECORD * count, b"")] if size > RECORD * count else []),
                (self.vectors_path, 4 * self.dim * count, values.tobytes()),
                (self.digests_path, RECORD * count, records),
            ):
                _append(path, end, content)
            if count + len(digests) >= SEAL:
                self._seal()

    def _seal(self) -> None:
        """Make shards of the log, and empty it, the digests first; damaged vectors are left behind."""
        records, size = self._records(), 4 * self.dim
        with self.vectors_path.open("rb") as file:
            while content := file.read(size * 2 * SEAL):
                first = (file.tell() - len(content)) // size
                mine = records[RECORD * first : RECORD * (first + len(content) // size)]
                digests = [mine[at : at + DIGEST] for at in range(0, len(mine), RECORD)]
                rows = [content[size * row : size * (row + 1)] for row in range(len(digests))]
                sums = [mine[at + DIGEST : at + RECORD] for at in range(0, len(mine), RECORD)]
                sound = [
                    (digest, row) for digest, row, known in zip(digests, rows, sums, strict=True)
                    if _checksum(digest, memoryview(row)) == known
                ]  # fmt: skip
                if sound:
                    values = np.frombuffer(b"".join(row for _, row in sound), dtype="<f4").reshape(-1, self.dim)
                    self.sealed.add([digest for digest, _ in sound], values)
        for path in (self.digests_path, self.vectors_path):
            _append(path, 0, b"")

    def _records(self) -> bytes:
        with explained(self.folder, "read"):
            return self.digests_path.read_bytes() if self.digests_path.exists() else b""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                yield


def _embedded(
    embedder: Embedder, items: Sequence[Item], missing: list[int], digests: list[bytes], bar: Bar
) -> Iterator[tuple[list[int], Vectors, dict[int, str]]]:
    """Images embedded in batches: their numbers and vectors, and those that cannot be decoded, with the reason.

    While the network computes a batch, the next one is decoded.
    """
    tick = bar(f"embedding with {embedder.name}", len(missing)) if missing else None
    wanted = [Item(items[n].name, items[n].label, partial(_unchanged, items[n], digests[n])) for n in missing]
    listing = Listing((), len(missing), lambda start: iter(wanted))
    crop = getattr(embedder, "crop", False)
    decoded = zip(missing, pictures(listing, embedder.image_size, embedder.channels, crop=crop), strict=True)
    size = max(1, BATCH_PIXELS // embedder.image_size**2)
    waiting: deque[tuple[list[int], dict[int, str], Future[Vectors]]] = deque()
    ahead = 1 if getattr(embedder, "any_thread", False) else 0

    def finished() -> tuple[list[int], Vectors, dict[int, str]]:
        numbers, broken, future = waiting.popleft()
        vectors = _checked(embedder, future.result(), [items[number].name for number in numbers])
        return numbers, vectors, broken

    with _computing(embedder) as compute:
        for batch in iter(lambda: list(islice(decoded, size)), []):
            broken = {number: picture for number, (_, picture) in batch if isinstance(picture, str)}
            sound = [(number, picture.pixels) for number, (_, picture) in batch if not isinstance(picture, str)]
            waiting.append(([number for number, _ in sound], broken, compute([pixels for _, pixels in sound])))
            if len(waiting) > ahead:
                yield finished()
            if tick is not None:
                tick(len(batch))
        while waiting:
            yield finished()


@contextmanager
def _computing(embedder: Embedder) -> Iterator[Callable[[list[Pixels]], Future[Vectors]]]:
    """A function that starts to embed a batch: in a thread beside this one, if the embedder is made for that."""

    def embed(pixels: list[Pixels]) -> Vectors:
        return embedder.embed(np.stack(pixels)) if pixels else np.zeros((0, embedder.dim), dtype=np.float32)

    def at_once(pixels: list[Pixels]) -> Future[Vectors]:
        future: Future[Vectors] = Future()
        future.set_result(embed(pixels))
        return future

    if not getattr(embedder, "any_thread", False):  # settings of a user's function may hold for this thread only
        yield at_once
        return
    with ThreadPoolExecutor(1) as pool:
        yield lambda pixels: pool.submit(embed, pixels)


def _checked(embedder: Embedder, vectors: Vectors, names: list[str]) -> Vectors:
    """Check that the vectors of a batch have the promised shape and are finite; as float32."""
    vectors = checked_vectors(embedder, vectors, len(names))
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise HandfulError(
            f"the embedder {embedder.name} gives no finite vector for {printable(names[finite.argmin()])}"
        )
    return vectors


def _rows(records: bytes) -> dict[bytes, int]:
    """The row of each digest, the last one if it is there more than once."""
    return {records[RECORD * row : RECORD * row + DIGEST]: row for row in range(len(records) // RECORD)}


def _nothing(count: int, dim: int) -> tuple[Vectors, NDArray[np.bool_]]:
    """Zeros for the vectors (count, dim), and a mask that marks none of them as known."""
    return np.zeros((count, dim), dtype="<f4"), np.zeros(count, dtype=bool)


def _unchanged(item: Item, digest: bytes) -> Payload:
    """An image as it was when its digest was taken: its vector is kept under that."""
    payload = item.read()
    if _hash(payload) != digest:
        raise BrokenImage("changed while it was read")
    return payload


def _digest(item: Item) -> bytes | str:
    try:
        return _hash(item.read())
    except BrokenImage as error:
        return str(error)


def _hash(payload: Payload) -> bytes:
    if isinstance(payload, bytes):
        return hashlib.sha256(payload).digest()
    return hashlib.sha256(repr((payload.shape, payload.dtype)).encode() + payload.tobytes()).digest()


def _checksum(digest: bytes, vector: memoryview) -> bytes:
    """Of both: a vector beside the digest of another image is damaged as well."""
    found = hashlib.sha256(digest)
    found.update(vector)
    return found.digest()[:CHECKSUM]


def _append(path: Path, end: int, content: bytes) -> None:
    """Cut a file to a length, and write behind that."""
    with path.open("ab") as file:
        file.truncate(end)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
