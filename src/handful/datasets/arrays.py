"""Read .npz files of images row by row: an array of any size needs the memory of a few images, and no pickle in it is
ever loaded.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from .files import METHODS
from .images import MOST_BYTES, printable

_MOST_HEADER = 1 << 14


@dataclass(frozen=True)
class StoredImages:
    """An array of images inside an .npz file: (n, height, width, channels) or (n, channels, height, width)."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, start: int = 0) -> Iterator[NDArray[Any]]:
        """The images from number ``start`` on, (height, width, channels) each, as uint8 where they fit into it."""
        scale: float | None = None
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as file:
                _header(file)
                size = math.prod(self.shape[1:]) * self.dtype.itemsize
                for index in range(len(self)):
                    content = file.read(size)
                    if len(content) != size:
                        raise EOFError(f"it ends after {index} images")
                    row = np.frombuffer(content, dtype=self.dtype).reshape(self.shape[1:])
                    if self.dtype.kind == "f" and scale is None and row.max() > 0:  # once, and not by a black image
                        scale = 255.0 if row.max() <= 1 else 1.0
                    if index >= start:
                        yield _pixels(row, scale or 1.0)
        except Exception as error:  # of damaged archives: BadZipFile, zlib.error, EOFError, ...
            raise HandfulError(f"{self.path} is damaged: {printable(str(error)) or type(error).__name__}") from error


def open_npz(path: Path) -> dict[str, StoredImages]:
    """The arrays of images in an .npz file, by name; only their headers are read."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type not in METHODS:
                    raise ValueError(f"'{printable(member.filename)}' is packed by a method that is not read")
                with archive.open(member) as file:
                    shape, columns_first, dtype = _header(file)
                    length = file.tell()
                name = member.filename.removesuffix(".npy")
                if dtype.hasobject:
                    raise HandfulError(f"{path} is refused: '{printable(name)}' holds pickled objects")
                if math.prod(shape) * dtype.itemsize + length != member.file_size:
                    raise ValueError(f"'{printable(name)}' is not as long as its header says")
                row = math.prod(shape[1:]) * dtype.itemsize
                sound = len(shape) == 4 and 0 <= shape[0] < 1 << 40 and min(shape[1:]) > 0 and row <= MOST_BYTES
                if not sound or columns_first or dtype.kind not in "uif":
                    raise HandfulError(
                        f"'{printable(name)}' in {path} is not an array of images: {dtype} of shape {shape}"
                        + (" in Fortran order" if columns_first else "")
                    )
                found[name] = StoredImages(path, name, shape, dtype)
    except HandfulError:
        raise
    except Exception as error:
        raise HandfulError(
            f"{path} is damaged or no .npz file: {printable(str(error)) or type(error).__name__}"
        ) from error
    return found


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    start = io.BytesIO(file.read(_MOST_HEADER))  # numpy would read as much as the header claims to have
    version = np.lib.format.read_magic(start)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"arrays of version {version} hold no images")
    found = read[version](start)
    file.seek(start.tell())
    return found


def _pixels(row: NDArray[Any], scale: float) -> NDArray[Any]:
    if row.shape[0] in (1, 3) and row.shape[2] not in (1, 3, 4):
        row = row.transpose(1, 2, 0)
    if row.dtype == np.uint8:
        return row
    values = np.rint(row * scale)
    # What does not fit is left as it is, for the decoder to name as broken.
    return values.astype(np.uint8) if values.min(initial=0) >= 0 and values.max(initial=0) <= 255 else row
