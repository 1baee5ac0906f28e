"""Vectors in a folder of shards, as ``handful embed`` writes it: one array, read from disk where it is needed.

Opening a folder lists it and reads one small file, however many vectors it holds. Rows are read by memory maps that
last as long as what is read of them is in use; names and digests are read shard by shard when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import printable
from ..errors import HandfulError
from ..io import read_object
from .base import Vectors
from .origin import Origin
from .precomputed import Precomputed
from .shards import MANIFEST, shard_names

HEADER = 128  # bytes before the numbers of a .npy file
DIGEST, CHECKSUM = 32, 8  # bytes
ENDING = ".npy"
Rows = NDArray[np.int64]
_NO_ROWS = np.zeros(0, dtype=np.int64)


class VectorFolder:
    """Vectors (n, dim) float32 across shards: takes slices, row numbers and masks as an array does.

    Attributes:
        path: the folder.
        origin: the embedder that made the vectors.
        shape, dtype, ndim: as those of an array.

    Example:
        >>> x = VectorFolder("vectors")                            # doctest: +SKIP
        >>> TACClassifier().fit(x, y)                              # doctest: +SKIP
    """

    ndim = 2
    dtype = np.dtype("<f4")

    def __init__(self, path: str | Path, rows: Rows | None = None) -> None:
        self.path = Path(path)
        self.origin = _origin(self.path)
        dim, self.shards = self.origin.dim, []
        counts = []
        for name in shard_names(self.path):
            counts.append(self._count(self.path / f"{name}{ENDING}", 4 * dim))
            self.shards.append(name)
        self._ends = np.cumsum(counts, dtype=np.int64) if counts else np.zeros(0, dtype=np.int64)
        self._sound: set[int] = set()
        self._rows = rows
        self.shape = (len(rows) if rows is not None else int(self._ends[-1]) if counts else 0, dim)

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> Vectors: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[Any] | Sequence[int]) -> Vectors: ...
    def __getitem__(self, rows: Any) -> Vectors:
        if isinstance(rows, int | np.integer):
            found: Vectors = self[np.array([rows])][0]
            return found
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if self._rows is None and step == 1:
                return self._between(start, max(start, stop))
            rows = np.arange(start, stop, step)
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        rows = np.where(rows < 0, rows + len(self), rows).astype(np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"there are {len(self)} vectors, and no row {int(rows.max())}")
        return self._gathered(rows if self._rows is None else self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def take(self, rows: Rows) -> VectorFolder:
        """Some of the rows, in this order; nothing is read."""
        return VectorFolder(self.path, rows if self._rows is None else self._rows[rows])

    @property
    def names(self) -> Iterator[str]:
        """The names of the images, a shard at a time."""
        for shard, _, about in self.abouts():
            yield from _names(about, shard, self.path)

    @property
    def broken(self) -> Iterator[tuple[str, str]]:
        """Images that could not be read, with the reason, a shard at a time."""
        for _, _, about in self.abouts():
            yield from about.get("broken", {}).items()

    def abouts(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Each shard, the number of its first row, and what its JSON file says."""
        first = 0
        for shard, end in zip(self.shards, self._ends.tolist(), strict=True):
            yield shard, first, read_object(self.path / f"{shard}.json")
            first = end

    def find(self, names: Sequence[str]) -> Rows:
        """The row of each of these images (n,).

        Raises:
            HandfulError: if there is none of an image, or more than one that are not of the same content.
        """
        found = np.full(len(names), -1, dtype=np.int64)
        places = {name: place for place, name in enumerate(names)}
        digests: dict[str, str] = {}
        for shard, first, about in self.abouts():
            for number, name in enumerate(_names(about, shard, self.path)):
                place = places.get(name)
                if place is None:
                    continue
                digest = about["digests"][2 * DIGEST * number : 2 * DIGEST * (number + 1)]
                if found[place] >= 0 and digests[name] != digest:
                    raise HandfulError(f"{self.path} has two vectors of '{printable(name)}': embed its sources apart")
                found[place], digests[name] = first + number, digest
        if len(missing := np.flatnonzero(found < 0)):
            raise HandfulError(
                f"{self.path} has no vector of '{printable(names[missing[0]])}' ({len(missing):,} images are missing): "
                "run 'handful embed' again"
            )
        return found

    def damaged(self) -> Iterator[str]:
        """Shards whose content is not what was written, by their checksums: reads everything."""
        for shard, _, about in self.abouts():
            digest = hashlib.sha256()
            with (self.path / f"{shard}{ENDING}").open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
            if digest.hexdigest() != about.get("sha256"):
                yield shard

    def _count(self, path: Path, row: int) -> int:
        try:
            size = os.stat(path).st_size - HEADER  # noqa: PTH116 - there may be a million of them
        except OSError as error:
            raise HandfulError(f"cannot read {path}: {error.strerror}") from error
        if size < 0 or size % row:
            raise HandfulError(f"{path} is damaged: it holds no vectors of {self.origin.dim} numbers; remove its .json")
        return size // row

    def _path(self, shard: int) -> Path:
        return self.path / f"{self.shards[shard]}{ENDING}"

    def _check(self, shard: int) -> int:
        """How many vectors a shard has; its header must say the same."""
        count = int(self._ends[shard] - (self._ends[shard - 1] if shard else 0))
        if shard not in self._sound:
            with self._path(shard).open("rb") as file:
                if file.read(HEADER) != npy_header(count, self.shape[1]):
                    raise HandfulError(f"{self._path(shard)} is damaged: it is no array of {(count, self.shape[1])}")
            self._sound.add(shard)
        return count

    def _mapped(self, shard: int) -> Vectors:
        if not (count := self._check(shard)):
            return np.zeros((0, self.shape[1]), dtype=self.dtype)
        # A map of its own for each read: pages that are no longer in use leave this process with it.
        return np.memmap(self._path(shard), dtype=self.dtype, mode="r", offset=HEADER, shape=(count, self.shape[1]))

    def _between(self, start: int, stop: int) -> Vectors:
        """A view of one shard; rows that lie in several are read into one array."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        if start == stop or stop <= self._ends[first]:
            begin = int(self._ends[first - 1]) if first else 0
            return self._mapped(first)[start - begin : stop - begin] if start < stop else self._gathered(_NO_ROWS)
        found = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        place, row = found.reshape(-1).view(np.uint8).data, 4 * self.shape[1]
        for shard in range(first, int(np.searchsorted(self._ends, stop, side="left")) + 1):
            begin, end = int(self._ends[shard - 1]) if shard else 0, int(self._ends[shard])
            low, high = max(start, begin), min(stop, end)
            self._check(shard)
            # Not by a map: each of its pages would have to be fetched, and left again, for one copy.
            with self._path(shard).open("rb", buffering=0) as file:
                file.seek(HEADER + row * (low - begin))
                wanted = place[row * (low - start) : row * (high - start)]
                while wanted and (count := file.readinto(wanted)):
                    wanted = wanted[count:]
            if wanted:
                raise HandfulError(f"{self._path(shard)} became shorter while it was read")
        return found

    def _gathered(self, rows: Rows) -> Vectors:
        found = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        shards = np.searchsorted(self._ends, rows, side="right")
        for shard in np.unique(shards).tolist():
            here = shards == shard
            found[here] = self._mapped(shard)[rows[here] - (int(self._ends[shard - 1]) if shard else 0)]
        return found


class PrecomputedFolder(Precomputed):
    """``npy:FOLDER``: vectors of a folder that ``handful embed`` wrote, found by the names of the images."""

    def __init__(self, folder: str) -> None:
        self.name, self.vectors = f"npy:{folder}", VectorFolder(folder)
        self.dim, self.origin = self.vectors.shape[1], self.vectors.origin

    def rows(self, names: Sequence[str]) -> Vectors:
        """The vectors of these images, which stay on disk until they are asked for."""
        found = self.vectors.find(names)
        whole = len(found) == len(self.vectors) and bool((found == np.arange(len(found))).all())
        taken: Any = self.vectors if whole else self.vectors.take(found)
        return taken  # type: ignore[no-any-return]  # it takes slices and row numbers as an array does


def given_vectors(place: str) -> Precomputed:
    """``npy:``: a file of vectors, or a folder of them."""
    return PrecomputedFolder(place) if place and is_vector_folder(Path(place)) else Precomputed(place)


def is_vector_folder(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def npy_header(count: int, dim: int) -> bytes:
    """The first bytes of a ``.npy`` file of (count, dim) float32; numpy's own, of a length that does not vary."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, {dim}), }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode() + b"\n"


def npy_bytes(vectors: Vectors) -> bytes:
    """Vectors as the content of a ``.npy`` file."""
    values = np.ascontiguousarray(vectors, dtype="<f4")
    return npy_header(*values.shape) + values.tobytes()


def checksums(digests: Iterable[bytes], vectors: Vectors) -> bytes:
    """Of each image's digest and vector: a vector beside the digest of another image is damaged as well."""
    values = np.ascontiguousarray(vectors, dtype="<f4")
    return b"".join(
        hashlib.sha256(one + row.tobytes()).digest()[:CHECKSUM] for one, row in zip(digests, values, strict=True)
    )


def _names(about: dict[str, Any], shard: str, path: Path) -> list[str]:
    names, digests = about.get("names"), about.get("digests")
    if not isinstance(names, list) or not isinstance(digests, str) or len(digests) != 2 * DIGEST * len(names):
        raise HandfulError(f"{path / shard}.json is damaged: it should hold names and a digest of each")
    return names


def _origin(path: Path) -> Origin:
    if not path.is_dir():
        raise HandfulError(f"there is no folder of vectors at {printable(str(path))}")
    try:
        origin = Origin(**read_object(path / MANIFEST)["embedder"])
        fault = origin.fault()
    except (KeyError, TypeError):
        fault = "it says of no embedder"
    if fault:
        raise HandfulError(f"{path / MANIFEST} is no description of vectors: {fault}")
    return origin
