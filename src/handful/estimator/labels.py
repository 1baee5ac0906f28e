"""Labels as users give them -> class ids; what counts as unlabelled; rows known to be of no class."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from .rows import FREE, NONE

WHOLE = 1 << 53  # integers beyond it are not all numbers of float64


def read_labels(y: Any, count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class ids with `FREE` for what is unlabelled, and the classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None: give -1 for unlabelled rows")
    y = _as_given(y)
    if y.dtype.kind not in "OUSbiuf":
        raise ValueError(f"labels must be strings or whole numbers, got {y.dtype}")
    y = column_or_1d(y, warn=True)
    if len(y) != count:
        raise ValueError(f"X has {count} rows, but y has {len(y)} labels")
    if y.dtype.kind in "OUS":
        free = np.array([_is_blank(label) for label in y], dtype=bool)
    else:
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise ValueError("y has NaN or infinity: for unlabelled rows give -1")
        free = (y == -1) if y.dtype.kind != "b" else np.zeros(len(y), dtype=bool)
    known = y[~free]
    if len(known) == 0:
        raise ValueError("no row is labelled: y holds no class")
    if y.dtype.kind == "O":
        known = _of_one_kind(known)
    if known.dtype.kind == "f" and not (np.isfinite(known) & (known == np.floor(known))).all():
        raise ValueError("Unknown label type: continuous. Classes are strings or whole numbers, not fractions")
    classes, ids = np.unique(known, return_inverse=True)
    written = {"nan", "-1", "None"} & set(classes.tolist()) if y.dtype.kind == "U" else ()
    if written:
        warnings.warn(
            f"y has the class {min(written)!r}, which is what NumPy makes of a blank among strings: if these rows are "
            "unlabelled, give a list or an array of dtype=object",
            stacklevel=5,  # where fit was called
        )
    if len(classes) < 2:
        raise ValueError(f"needs at least two classes to tell apart, got one class: {classes[0]!r}")
    labels = np.full(len(y), FREE, dtype=np.int64)
    labels[~free] = ids
    return labels, classes


def _as_given(y: Any) -> NDArray[Any]:
    """Labels as an array in which each still is what it was: NumPy makes text of None, NaN and 1 among strings."""
    if isinstance(y, np.ma.MaskedArray):
        each = np.array(y, dtype=object)
        each[np.ma.getmaskarray(y)] = None
        return each
    found = np.asarray(y)
    if found.dtype.kind == "T":  # NumPy's strings of any length
        return found.astype(object)
    if isinstance(y, np.ndarray) or found.dtype.kind not in "USf":
        return found
    try:
        each = np.asarray(y, dtype=object)
    except TypeError:  # its __array__ knows no dtype
        return found
    return found if found.dtype.kind == "f" and _exact(each.flat) else each


def _of_one_kind(known: NDArray[np.object_]) -> NDArray[Any]:
    """Labels as an array of strings or of numbers: 1 and "1" are not the same class, and better not two."""
    kinds = {_kind(label) for label in known}
    if other := kinds - {str, bytes, Real}:
        raise ValueError(f"labels must be strings or whole numbers, got {min(kind.__name__ for kind in other)}")
    if len(kinds) > 1:
        raise ValueError("labels should be all strings or all numbers, got both")
    found = np.array(known.tolist())
    return known if found.dtype.kind == "f" and not _exact(known) else found


def _kind(label: Any) -> type:
    kinds: tuple[tuple[type, tuple[type, ...]], ...] = ((str, (str,)), (bytes, (bytes,)), (Real, (Real, np.bool_)))
    return next((kind for kind, those in kinds if isinstance(label, those)), type(label))


def _exact(labels: Iterable[Any]) -> bool:
    """Whether no number among these becomes another one in float64."""
    return not any(isinstance(label, Integral) and abs(int(label)) > WHOLE for label in labels)


def _is_blank(label: Any) -> bool:
    if label is None or (isinstance(label, (str, bytes)) and not label):
        return True
    if isinstance(label, Real) and not isinstance(label, bool):
        return bool(label == -1 or label != label)
    return type(label).__name__ in ("NAType", "NaTType")  # as pandas has them


def mark_none(labels: NDArray[np.int64], none: Any) -> None:
    if none is None:
        return
    mask = np.asarray(none)
    if mask.shape != labels.shape or mask.dtype != bool:
        raise ValueError(f"none must be a bool for each of {len(labels)} rows, got {mask.dtype} of shape {mask.shape}")
    if (labels[mask] >= 0).any():
        raise ValueError("a row cannot be labelled and of no class: leave its label blank, or take it out of none")
    labels[mask] = NONE
