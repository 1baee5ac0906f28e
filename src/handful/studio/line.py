"""All images in one line, those that look alike side by side: an order to look through them in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

AT_A_TIME = 1000  # images whose distances are compared with each other; of more, halves are put one after the other
TURNS = 8  # of the search for the axis along which images differ most
Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


def in_line(points: Floats) -> Numbers:
    """The place (m,) of each of some unit vectors (m, reduced) in a line on which neighbours are alike.

    It is the order of the leaves of Ward's hierarchical clustering, which merges what is nearest first.
    """
    place = np.empty(len(points), dtype=np.int64)
    if len(points):
        place[np.concatenate(_parts(points, np.arange(len(points))))] = np.arange(len(points))
    return place


def _parts(points: Floats, rows: Numbers) -> list[Numbers]:
    """Rows in order, in parts: halved along the axis of the largest variance until few enough are left."""
    if len(rows) <= AT_A_TIME:
        few = len(rows) < 3
        return [rows if few else rows[leaves_list(linkage(points[rows].astype(np.float64), "ward"))]]
    centred = points[rows] - points[rows].mean(0)
    axis = centred[(centred**2).sum(1).argmax()]
    for _ in range(TURNS):
        axis = centred.T @ (centred @ axis)
        axis = axis / max(float(np.linalg.norm(axis)), 1e-12)
    order = np.argsort(centred @ axis, kind="stable")
    half = len(rows) // 2
    return _parts(points, rows[order[:half]]) + _parts(points, rows[order[half:]])
