"""Rows of X as centred, mapped unit vectors that are never stored: X is read a chunk at a time and never copied.

A row x of X stands for the unit vector

    f = a A x - b t,    A the head's map (or none), t = A m, m the mean direction of all rows,

with two numbers per row, its scale a and its shift b: x is scaled to unit length, centred by m, scaled again, mapped,
scaled again. A row without a direction has a = b = 0.

Only the direction of a row counts, whatever its length. Rows whose squares are too large or too small for their type
are multiplied by a power of two, which is exact, whenever their chunk is read (`measured`); all other chunks are used
as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

CHUNK_BYTES = 64 << 20  # of the rows of X that are read at a time, and of their cosines
TINY = 1e-12  # of a sum in float64: what is shorter has cancelled out
ROUNDING = 4  # machine epsilons: what is shorter, of a difference of unit vectors, is their rounding
FEW = 64  # columns
FREE, NONE = -1, -2  # labels of unlabelled rows, and of rows known to be of no class


@dataclass(frozen=True)
class Frame:
    """Centring, and the head's map, that turn rows of X into unit vectors.

    Attributes:
        centre: (features,) the mean of the rows, each scaled to unit length; or zero.
        map: (dim, features) with a largest entry of about one, or None.
    """

    centre: Floats
    map: Floats | None = None

    @classmethod
    def of(cls, x: Floats, map: Floats | None = None, centred: bool = True) -> Frame:
        total = np.zeros(x.shape[1])
        for rows in chunks(x) if centred else ():
            part, length, _ = measured(x[rows])
            total += inverse(length, 0) @ part
        return cls((total / len(x)).astype(x.dtype), None if map is None else mild(map).astype(x.dtype))

    @property
    def shift(self) -> Floats:
        return self.centre if self.map is None else self.map @ self.centre


class Points:
    """The rows of X as centred and mapped unit vectors (n, dim), which are not stored.

    Attributes:
        row_scale, row_shift: (n,), a and b above.
        powers: (n,) of two, by which rows are multiplied when they are read; mostly 0.
    """

    def __init__(self, x: Floats, frame: Frame) -> None:
        self.x, self.frame = x, frame
        self.row_scale, self.row_shift = (np.empty(len(x), dtype=x.dtype) for _ in range(2))
        self.powers = np.empty(len(x), dtype=np.int16)
        centre, rounding = frame.centre, float(ROUNDING * np.finfo(x.dtype).eps)
        for rows in chunks(x, 0 if frame.map is None else len(frame.map)):
            part, length, self.powers[rows] = measured(x[rows])
            once = inverse(length, 0)
            unit = part * once[:, None] - centre
            unit = unit if frame.map is None else unit @ frame.map.T
            twice = inverse(lengths(unit), rounding)
            twice[once == 0] = 0
            self.row_scale[rows], self.row_shift[rows] = once * twice, twice

    def __len__(self) -> int:
        return len(self.x)

    def read(self, rows: slice | NDArray[Any]) -> Floats:
        """Some of the rows of X, scaled so that their squares neither overflow nor underflow."""
        return scaled(self.x[rows], self.powers[rows])

    def vectors(self, rows: slice | NDArray[Any]) -> Floats:
        """Some of the points, spelled out: (rows, dim)."""
        found = self.read(rows) * self.row_scale[rows, None]
        found = found if self.frame.map is None else found @ self.frame.map.T
        return found - self.row_shift[rows, None] * self.frame.shift


def chunks(x: Floats, width: int = 0, count: int | None = None) -> Iterator[slice]:
    """Slices of rows of some megabytes each, of X or of an array with ``width`` columns, if that is wider.

    They cover all rows of X, or the first ``count``.
    """
    step = max(1, CHUNK_BYTES // max(1, max(width, x.shape[1]) * x.dtype.itemsize))
    count = len(x) if count is None else count
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def measured(vectors: Floats) -> tuple[Floats, Floats, NDArray[np.int16]]:
    """Vectors (n, dim) of lengths that can be squared, their lengths (n,), and the powers of two that this took (n,).

    Vectors whose squares are neither too large nor too small for their type are returned as they are, with powers of 0.
    """
    powers, kind = np.zeros(len(vectors), dtype=np.int16), np.finfo(vectors.dtype)
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    wild = ~((squares >= kind.tiny**0.5) & (squares <= kind.max**0.5))
    if wild.any():
        some = vectors[wild]
        powers[wild] = -np.frexp(np.maximum(some.max(1), -some.min(1)))[1]
        some = scaled(some, powers[wild])
        squares[wild] = np.einsum("ij,ij->i", some, some)
        vectors = scaled(vectors, powers)
    return vectors, np.sqrt(squares), powers


def lengths(vectors: Floats) -> Floats:
    """(n, dim) -> (n,), infinite where it is too large for the type."""
    _, length, powers = measured(vectors)
    with np.errstate(over="ignore", under="ignore"):
        found: Floats = np.ldexp(length, -powers)
    return found


def scaled(vectors: Floats, powers: NDArray[np.int16]) -> Floats:
    """Vectors (n, dim) times two to these powers (n,), in two steps, since one factor may be too large for the type."""
    if not powers.any():
        return vectors
    half, one = powers // 2, vectors.dtype.type(1)
    with np.errstate(under="ignore"):
        found: Floats = vectors * np.ldexp(one, half)[:, None]
        found *= np.ldexp(one, powers - half)[:, None]
    return found


def mild(matrix: Floats) -> NDArray[np.float64]:
    """A matrix, of which only the direction counts, times a power of two that makes its largest entry about one."""
    wide = matrix.astype(np.float64)
    found: NDArray[np.float64] = np.ldexp(wide, -np.frexp(np.abs(wide).max())[1])
    return found


def inverse(length: Floats, least: float | Floats = TINY) -> Floats:
    """1 / length, and 0 where it is no more than the least that counts."""
    return np.divide(1, length, out=np.zeros_like(length), where=length > least)


def unit(vectors: Floats, least: float | Floats = TINY) -> Floats:
    """Vectors (n, dim) of length 1, and 0 where they are no longer than the least that counts."""
    part, length, _ = measured(vectors)
    return part * np.where(lengths(vectors) > least, inverse(length, 0), 0)[:, None]


def softmax(logits: Floats) -> Floats:
    """(n, classes) -> (n, classes)."""
    top = logits[:, 0].copy()
    for column in logits.T[1:] if logits.shape[1] < FEW else [logits.max(1)]:  # much faster for few columns
        np.maximum(top, column, out=top)
    found: Floats = logits - top[:, None]
    np.exp(found, out=found)
    found /= (found @ np.ones(found.shape[1], dtype=found.dtype))[:, None]
    return found
