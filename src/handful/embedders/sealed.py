"""The older vectors of a store, in shards of the same format as those of ``handful embed``.

Such a store is a folder of vectors as any other: :class:`.vectors.VectorFolder` opens it. Its images have no names, as
they are known by their content: the digests stand for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from ..io import read_object, write_json
from .base import Vectors
from .origin import Origin
from .shards import FORMAT, LAST, MANIFEST, Part, ShardFolder, shard_names
from .vectors import CHECKSUM, DIGEST, ENDING, HEADER, checksums, npy_bytes

SLUG = "store-00000000"


class _Shard(NamedTuple):
    """What a shard holds: the digests (n, 32) and checksums (n, 8) of its vectors, and the order of the digests."""

    digests: NDArray[np.uint8]
    checksums: NDArray[np.uint8]
    order: NDArray[np.intp]
    sorted: NDArray[np.uint64]  # the first eight bytes of each digest, in that order


_READ: dict[tuple[str, int, int], _Shard | None] = {}  # by path, time and size: shards do not change


class Sealed:
    """The shards of a store.

    Args:
        folder: of the store.
        origin: the embedder.
    """

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder, self.origin = folder, origin

    def read(self, digests: Sequence[bytes], vectors: Vectors, sound: NDArray[np.bool_], listed: set[int]) -> int:
        """Fill in vectors (n, dim) that are not sound yet (n,), as far as they are here.

        Returns:
            How many there should have been, with those that are ``listed`` elsewhere.
        """
        names = shard_names(self.folder) if (self.folder / MANIFEST).is_file() else []
        listed = set(listed)
        for name in reversed(names):  # the newest holds
            places = np.flatnonzero(~sound)
            shard = self._shard(name) if len(places) else None
            if shard is None:
                continue
            wanted = np.frombuffer(b"".join(digests[place] for place in places.tolist()), dtype=np.uint8).reshape(
                -1, DIGEST
            )
            keys = np.ascontiguousarray(wanted[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
            at = np.minimum(np.searchsorted(shard.sorted, keys), max(0, len(shard.sorted) - 1))
            rows = shard.order[at]
            here = (shard.digests[rows] == wanted).all(1)
            listed.update(places[here].tolist())
            self._fill(name, shard, rows[here], places[here], vectors, sound)
        return len(listed)

    def count(self) -> int:
        """How many vectors there are, those twice counted twice."""
        names = shard_names(self.folder) if (self.folder / MANIFEST).is_file() else []
        return sum(len(shard.digests) for name in names if (shard := self._shard(name)) is not None)

    def add(self, digests: Sequence[bytes], vectors: Vectors) -> None:
        """Write a shard; whoever calls this holds the lock of the store."""
        about = {"format": FORMAT, "ending": ENDING, "embedder": asdict(self.origin), "size": 0}
        if not (self.folder / MANIFEST).is_file():
            write_json(self.folder / MANIFEST, about)
        key = hashlib.sha256(b"".join(digests)).hexdigest()
        numbers = [int(name.removeprefix(f"{SLUG}-")[:6]) for name in shard_names(self.folder) if name.startswith(SLUG)]
        name = f"{SLUG}-{max(numbers, default=-1) + 1:06d}-{key[:16]}-0000{LAST}"
        more = {
            "unit": key, "source": "", "last": True, "seen": len(digests), "images": len(digests), "problem": None,
            "broken": {}, "names": [digest.hex() for digest in digests], "digests": b"".join(digests).hex(),
            "checksums": checksums(digests, vectors).hex(),
        }  # fmt: skip
        ShardFolder.write_to(self.folder, ENDING, Part(key, name, npy_bytes(vectors), more))

    def _shard(self, name: str) -> _Shard | None:
        """What a shard holds; None if its description is damaged, as if it were not there."""
        path = self.folder / f"{name}.json"
        with suppress(FileNotFoundError):
            found = path.stat()
            key = (str(path), found.st_mtime_ns, found.st_size)
            if key not in _READ:
                _READ[key] = _parsed(path)
            return _READ[key]
        return None

    def _fill(
        self, name: str, shard: _Shard, rows: NDArray[np.intp], places: NDArray[np.intp], vectors: Vectors,
        sound: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        size = 4 * self.origin.dim
        with suppress(FileNotFoundError), (self.folder / f"{name}{ENDING}").open("rb", 0) as file:
            for row, place in sorted(zip(rows.tolist(), places.tolist(), strict=True)):
                file.seek(HEADER + size * row)
                content = file.read(size)
                checksum = hashlib.sha256(shard.digests[row].tobytes() + content).digest()[:CHECKSUM]
                if len(content) == size and checksum == shard.checksums[row].tobytes():
                    vectors[place] = np.frombuffer(content, dtype="<f4")
                    sound[place] = True


def _parsed(path: Path) -> _Shard | None:
    try:
        about = read_object(path)
        digests = np.frombuffer(bytes.fromhex(about["digests"]), dtype=np.uint8).reshape(-1, DIGEST)
        sums = np.frombuffer(bytes.fromhex(about["checksums"]), dtype=np.uint8).reshape(len(digests), CHECKSUM)
    except (HandfulError, KeyError, TypeError, ValueError):
        return None
    if not len(digests):
        return None
    keys = np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    return _Shard(digests, sums, order, keys[order])
