"""Methods that adapt to a set of points without labels and have nothing to learn beside the backbone.

They were published as transductive: the set is that of the queries, which are classified together. Here the set is that
of the unlabelled images, and each query is then classified by itself; ``transductive`` adds the queries to the set.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .._linalg import unit
from ..episode import Episode
from ..errors import HandfulError
from .base import Method, Range, with_and_without


class Task(NamedTuple):
    """Vectors of a batch of tasks: support (..., N, K, D), others (..., S, D) to adapt to, query (..., Q, D)."""

    support: Tensor
    others: Tensor
    query: Tensor

    @property
    def points(self) -> Tensor:
        """Labelled points, class by class, then the others: (..., n, D)."""
        return torch.cat([self.support.flatten(-3, -2), self.others], dim=-2)

    @property
    def labels(self) -> Tensor:
        """One-hot labels of the labelled points, in the order of ``points``: (N K, N)."""
        ways, shots = self.support.shape[-3:-1]
        eye = torch.eye(ways, dtype=self.support.dtype, device=self.support.device)
        return eye.repeat_interleave(shots, dim=0)


class AdaptingMethod(Method):
    """A method that classifies by what it finds in a set of points without labels. A subclass writes :meth:`classify`.

    Vectors are scaled to length 1, centred at the mean of labelled points and set, and scaled again (:func:`centred`).
    All of the set is used at once: refinement 0 is without it, and all others are the same.

    Args:
        transductive: adapt to the queries as well, as published. That is another protocol, so the title says it.
        learn_scale: whether the scale is learned; it starts at ``scale``.
    """

    training_free = True
    tunables: ClassVar[dict[str, Range]] = {"cluster_scale": Range(0.1, 10.0)}

    def __init__(
        self, dim: int, ways: int, *, transductive: bool = False, learn_scale: bool = False, **options: Any
    ) -> None:
        super().__init__(dim, ways, **options)
        self.transductive = transductive
        if transductive:
            self.title = f"{self.title} (transductive)"
        if learn_scale:
            self.learn_scale()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return with_and_without(self._logits, episode, iterations)

    def _logits(self, episode: Episode) -> Tensor:
        others, query = episode.unlabelled, episode.query
        if self.transductive:
            others = torch.cat([others, query], dim=-2)
        return self.classify(self.prepare(Task(episode.support, others, query)))

    def prepare(self, task: Task) -> Task:
        """The vectors as the method reads them."""
        return centred(task)

    def classify(self, task: Task) -> Tensor:
        """Query logits (..., Q, N) from prepared vectors. The set may be empty."""
        raise NotImplementedError


def centred(task: Task) -> Task:
    """Unit vectors around the mean of labelled points and set, scaled to length 1 again; not around that of no set."""
    task = Task(*(unit(part) for part in task))
    if task.others.shape[-2] == 0:
        return task
    mean = task.points.mean(-2, keepdim=True)
    return Task(unit(task.support - mean.unsqueeze(-3)), unit(task.others - mean), unit(task.query - mean))


def nearest(products: Tensor, count: int, *, itself: bool = False) -> Tensor:
    """1 for the ``count`` largest of each row, and all as large as the last of them, else 0: (..., P, n), as it came.

    With unit vectors, the largest inner products are those of the nearest points. ``itself``: the points of rows and
    columns are the same, and none is a neighbour of itself.
    """
    if itself:
        diagonal = torch.eye(products.shape[-1], dtype=torch.bool, device=products.device)
        products, count = products.masked_fill(diagonal, -math.inf), min(count, products.shape[-1] - 1)
    least = products.topk(min(count, products.shape[-1])).values[..., -1:]
    return (products >= least).to(products.dtype)


def check_at_least(least: int, **values: int) -> None:
    """Raise a HandfulError for an option that is smaller."""
    for name, value in values.items():
        if value < least:
            raise HandfulError(f"{name} must be at least {least}, got {value}")
