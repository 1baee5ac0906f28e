"""The projection alone: distances in M without ever building it, against a full SVD."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .. import functional as F
from . import plain
from .measure import Bench, in_turns

POINTS = 100


def bench_project(repeats: int = 5, *, curves: bool = True) -> Bench:
    """Errors, basis and squared distances of 100 points to N means, one task at a time."""
    bench = Bench(f"distances of {POINTS} points to N means in M, one task; {torch.get_num_threads()} threads")
    generator = torch.Generator().manual_seed(0)
    for ways, dim in [(5, 64), (5, 256), (5, 640), (5, 1600), (2, 1600), (10, 1600), (20, 1600)]:
        means, references = (torch.randn(ways, dim, generator=generator) for _ in range(2))
        points = torch.randn(POINTS, dim, generator=generator)

        both = {"ours": partial(_ours, points, means, references), "plain": partial(_plain, points, means, references)}
        seconds = in_turns(both, repeats)
        exact = _plain(points.double(), means.double(), references.double())
        off = ((_ours(points, means, references) - exact).abs() / exact).max()
        bench.rows.append({
            "ways": ways, "dimensions": dim,
            "ours (ms)": 1e3 * seconds["ours"], "full SVD (ms)": 1e3 * seconds["plain"],
            "ours is faster": seconds["plain"] / seconds["ours"], "off by": float(off),
        })  # fmt: skip
        if ways == 5:
            for way, value in seconds.items():
                bench.curves.setdefault("dimensions", {}).setdefault(way, []).append((dim, value))
        if dim == 1600:
            for way, value in seconds.items():
                bench.curves.setdefault("ways", {}).setdefault(way, []).append((ways, value))
    for lines in bench.curves.values():
        for points_ in lines.values():
            points_.sort()
    return bench


def _ours(points: Tensor, means: Tensor, references: Tensor) -> Tensor:
    return F.projected_sqdist(points, means, F.null_basis(F.error_vectors(means, references)))


def _plain(points: Tensor, means: Tensor, references: Tensor) -> Tensor:
    return plain.sqdist(points, means, plain.null_space(plain.errors(means, references)))
