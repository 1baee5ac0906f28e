"""``handful bench``: each part compared with a straightforward PyTorch loop, in one run."""

from __future__ import annotations

from collections.abc import Callable

from .embed import bench_embed
from .evaluate import bench_eval
from .fit import bench_fit
from .label import bench_label
from .measure import Bench, draw
from .project import bench_project
from .train import bench_train

BENCHES: dict[str, Callable[..., Bench]] = {
    "eval": bench_eval,
    "train": bench_train,
    "project": bench_project,
    "label": bench_label,
    "fit": bench_fit,
    "embed": bench_embed,
}

__all__ = ["BENCHES", "Bench", "draw"]
