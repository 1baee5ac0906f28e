"""X as users give it: an array, or a folder of vectors that stays on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from ..embedders.vectors import VectorFolder
from .rows import chunks


def read_rows(estimator: Any, x: Any, *, reset: bool) -> Any:
    """X as rows (n, features) float32 or float64 that can be sliced; checked as scikit-learn checks arrays, not copied.

    Args:
        estimator: gets ``n_features_in_`` with ``reset``; else X must have as many.
        x: an array, or whatever scikit-learn makes one of; or a :class:`VectorFolder`.
        reset: whether this is the X of ``fit``.
    """
    if not isinstance(x, VectorFolder):
        return validate_data(estimator, x, dtype=[np.float64, np.float32], order=None, reset=reset)
    validate_data(estimator, x[:1] if len(x) else np.zeros((0, x.shape[1])), reset=reset)
    for rows in chunks(x):  # type: ignore[arg-type]  # it has all that chunks asks for
        part = x[rows]
        if not np.isfinite(part.sum(dtype=np.float64)) and not np.isfinite(part).all():
            raise ValueError(f"X contains NaN or infinity, in {x.path} among the rows from {rows.start} on")
    return x
