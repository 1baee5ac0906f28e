"""Vectors that were computed elsewhere."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import printable
from ..errors import HandfulError
from .base import Vectors, reason

CHUNK = 1 << 24  # bytes of an archive that are unpacked at a time
MOST_DIM = 1 << 20  # dimensions of a vector
MOST_PATH = 1 << 14  # bytes of a path: 4,096 characters
_MOST_HEADER = 1 << 14
_FLOATS = "floats of shape (images, dim)"


class Precomputed:
    """``npy:FILE``: a ``.npy`` array (images, dim) in the order of the images' sorted paths, or a ``.npz`` file with
    ``paths`` and ``vectors``, which may hold more and in any order.

    Nothing in the file is run: arrays of Python objects are refused. An archive is unpacked piece by piece, and only
    the vectors that are asked for are kept, so that a file that claims to be huge takes no memory.
    """

    def __init__(self, file: str) -> None:
        self.name, self._path, self._file = f"npy:{file}", Path(file), printable(file)
        self._paths: dict[str, int] | None = None
        self._mapped: NDArray[np.floating] | None = None
        if not file:
            raise HandfulError("npy needs a file: npy:vectors.npy")
        with self._explained():
            with self._path.open("rb") as opened:
                archive = opened.read(2) == b"PK"
            if archive:
                with self._member("vectors") as array:
                    self._check(array)
                self._paths = self._read_paths(array.shape[0])
            else:
                array = np.load(self._path, mmap_mode="r", allow_pickle=False)
                self._check(array)
                self._mapped = array
        self.dim = int(array.shape[1])

    def rows(self, names: Sequence[str]) -> Vectors:
        """The vectors of these images, which must be all images of the collection in sorted order."""
        if self._paths is None:
            assert self._mapped is not None
            if len(names) != len(self._mapped):
                raise HandfulError(
                    f"{self._file} has {len(self._mapped)} vectors, but there are {len(names)} images: save their "
                    "paths along, with numpy.savez(FILE, paths=..., vectors=...)"
                )
            with np.errstate(over="ignore"):
                found = np.asarray(self._mapped, dtype=np.float32)
        else:
            missing = [name for name in names if name not in self._paths]
            if missing:
                raise HandfulError(
                    f"{self._file} has no vector of '{printable(missing[0])}' ({len(missing)} images are missing)"
                )
            with self._explained():
                found = self._unpacked(np.array([self._paths[name] for name in names], dtype=np.int64))
        for start in range(0, len(found), 1024):
            finite = np.isfinite(found[start : start + 1024]).all(1)
            if not finite.all():
                name = printable(names[start + int(finite.argmin())])
                raise HandfulError(f"{self._file} holds no finite vector for {name}: compute it again")
        return found

    def _unpacked(self, rows: NDArray[np.int64]) -> Vectors:
        found = np.empty((len(rows), self.dim), dtype=np.float32)
        with self._member("vectors") as array, np.errstate(over="ignore"):
            for start, part in array.parts():
                end = start + len(part)
                if array.columns_first:
                    found[:, start:end] = part[:, rows].T
                else:
                    here = (rows >= start) & (rows < end)
                    found[here] = part[rows[here] - start]
        return found

    def _read_paths(self, count: int) -> dict[str, int]:
        paths: dict[str, int] = {}
        with self._member("paths") as array:
            sound = len(array.shape) == 1 and array.dtype.kind == "U" and 0 < array.dtype.itemsize <= MOST_PATH
            if not sound or array.shape[0] != count:
                raise HandfulError(
                    f"'paths' in {self._file} should be {count} names as text, numpy.array(names, dtype=str), got "
                    f"{array.dtype} of shape {array.shape}"
                )
            for start, part in array.parts():
                for row, name in enumerate(part.tolist(), start):
                    if paths.setdefault(name, row) != row:
                        raise HandfulError(f"{self._file} has two vectors of '{printable(name)}': keep one of them")
        return paths

    def _check(self, array: _Packed | NDArray[Any]) -> None:
        if len(array.shape) != 2 or array.dtype.kind != "f" or not 0 < array.shape[1] <= MOST_DIM:
            raise HandfulError(f"{self._file} should hold {_FLOATS}, got {array.dtype} of shape {array.shape}")

    @contextmanager
    def _member(self, name: str) -> Iterator[_Packed]:
        with zipfile.ZipFile(self._path) as archive:
            if f"{name}.npy" not in archive.namelist():
                raise HandfulError(
                    f"{self._file} has no array '{name}': save it with numpy.savez(FILE, paths=..., vectors=...)"
                )
            with archive.open(f"{name}.npy") as file:
                yield _Packed(file, archive.getinfo(f"{name}.npy").file_size)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except HandfulError:
            raise
        except FileNotFoundError:
            raise HandfulError(f"there are no vectors at {self._file}") from None
        except Exception as error:  # of damaged files: BadZipFile, zlib.error, EOFError, TokenError, ...
            raise HandfulError(
                f"{self._file} is not an array of vectors ({reason(error)}): save them with numpy.save, or "
                "numpy.savez(FILE, paths=..., vectors=...)"
            ) from error


class _Packed:
    """An array in an archive: its header, and its content in parts."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        head = io.BytesIO(file.read(_MOST_HEADER))  # numpy would read as much as the header claims to have
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self.columns_first, self.dtype = read(head)
        if self.dtype.hasobject:
            raise ValueError("it holds pickled objects, which are not read")
        if min(self.shape, default=0) < 0 or math.prod(self.shape) * self.dtype.itemsize + head.tell() != size:
            raise ValueError(f"its length is not that of {self.dtype} of shape {self.shape}")
        file.seek(head.tell())
        self._file = file

    def parts(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows, or the columns if those come first in the file, and the number that each part begins with."""
        count, *others = self.shape[::-1] if self.columns_first else self.shape
        row = math.prod(others) * self.dtype.itemsize
        step = max(1, CHUNK // max(1, row))
        for start in range(0, count, step):
            wanted = min(step, count - start)
            content = self._file.read(wanted * row)
            if len(content) != wanted * row:
                raise EOFError(f"it ends after {start} of {count}")
            yield start, np.frombuffer(content, dtype=self.dtype).reshape(wanted, *others)
        self._file.read(1)  # at its end, the archive compares its checksum
