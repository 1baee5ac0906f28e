"""Vectors that were computed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TacitError
from .base import Vectors


class Precomputed:
    """``npy:FILE``: a ``.npy`` array (images, dim) in the order of the images' sorted paths, or a ``.npz`` file with
    ``paths`` and ``vectors``, which may hold more and in any order.

    Nothing in the file is run: arrays of Python objects are refused.
    """

    def __init__(self, file: str) -> None:
        self.name, self._path = f"npy:{file}", Path(file)
        self._paths: dict[str, int] | None = None
        try:
            content = np.load(self._path, mmap_mode="r", allow_pickle=False)
            if isinstance(content, np.lib.npyio.NpzFile):
                self._paths = {str(name): row for row, name in enumerate(content["paths"])}
                content = content["vectors"]
        except FileNotFoundError:
            raise TacitError(f"there are no vectors at {file}") from None
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise TacitError(
                f"{file} is not an array of vectors: save them with numpy.save, or numpy.savez(FILE, paths=..., "
                "vectors=...)"
            ) from error
        if content.ndim != 2 or content.dtype.kind != "f" or (self._paths and len(self._paths) > len(content)):
            raise TacitError(f"{file} should hold floats of shape (images, dim), got {content.dtype} {content.shape}")
        self._vectors: NDArray[np.floating] = content
        self.dim = int(content.shape[1])

    def rows(self, names: Sequence[str]) -> Vectors:
        """The vectors of these images, which are all images there are, in sorted order."""
        if self._paths is None:
            if len(names) != len(self._vectors):
                raise TacitError(
                    f"{self._path} has {len(self._vectors)} vectors, but there are {len(names)} images: save their "
                    "paths along, with numpy.savez(FILE, paths=..., vectors=...)"
                )
            return np.asarray(self._vectors, dtype=np.float32)
        missing = [name for name in names if name not in self._paths]
        if missing:
            raise TacitError(f"{self._path} has no vector of '{missing[0]}' ({len(missing)} images are missing)")
        return np.asarray(self._vectors[[self._paths[name] for name in names]], dtype=np.float32)
