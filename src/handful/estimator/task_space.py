"""TAC's task-adaptive space of one task, by NumPy in float64: what :mod:`handful.functional` does with batches.

The space is what is left when the direction of each class's error, its reference less its mean, is projected away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from .rows import unit

Floats = NDArray[np.float64]


def modified_references(references: Floats) -> Floats:
    """Each reference less the mean of the others: (N, D) -> (N, D); a single one stays as it is."""
    count = len(references)
    if count == 1:
        return references
    found: Floats = references - (references.sum(0) - references) / (count - 1)
    return found


def error_vectors(centroids: Floats, references: Floats) -> Floats:
    """Unit modified reference minus unit centroid, per class: (N, D), (N, D) -> (N, D)."""
    return unit(modified_references(references), 0) - unit(centroids, 0)


def null_basis(errors: Floats) -> Floats:
    """Orthonormal columns that span the errors: (N, D) -> (D, N or fewer).

    As in NumPy's ``matrix_rank``, a direction counts if its singular value is more than ``eps * max(N, D)`` times the
    largest.
    """
    _, sizes, directions = np.linalg.svd(errors, full_matrices=False)
    found: Floats = directions[sizes > np.finfo(errors.dtype).eps * max(errors.shape) * sizes[0]].T
    return found


def assign_references(centroids: Floats, references: Floats) -> NDArray[np.intp]:
    """Which reference each class takes, to the largest sum of cosines: (N, D), (R, D), R >= N -> (N,)."""
    match = unit(centroids, 0) @ unit(modified_references(references), 0).T  # (N, R)
    chosen: NDArray[np.intp] = linear_sum_assignment(match, maximize=True)[1]
    return chosen
