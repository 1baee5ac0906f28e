"""BD-CSPN (Liu, Song and Qin, "Prototype Rectification for Few-Shot Learning", ECCV 2020): means corrected once.

Two errors of the class means of a few labelled points are corrected: labelled points and set differ in their mean, so
the set is moved by the difference; and a class has few labelled points, so the surest points of the set join them.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._linalg import unit
from .adapting import AdaptingMethod, Task, check_at_least
from .base import Range

SCALE, MOST = 10.0, 8  # of the authors


class PrototypeRectification(AdaptingMethod):
    """Logits are ``scale`` times the cosines with the corrected means, of queries that are moved as the set is.

    Args:
        scale: multiplies the cosines.
        most: points of the set that join a class, those with the largest cosines; fewer if fewer are nearest to it.
        move_queries: whether queries are classified where the set has been moved to, or where they are, as EasyFSL has
            it.
    """

    title = "BD-CSPN"
    summary = "class means corrected once by a shift and by the surest unlabelled images"
    tunables: ClassVar[dict[str, Range]] = {"cluster_scale": Range(0.1, 10.0), "most": Range(1, 20, "whole")}

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = SCALE,
        most: int = MOST,
        move_queries: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(1, most=most)
        self.most, self.move_queries = most, move_queries

    def classify(self, task: Task) -> Tensor:
        moved = shifted(task)
        means = rectified(moved, self.soft_scale, self.most)
        return self.scale * (moved if self.move_queries else task).query @ unit(means).mT


def shifted(task: Task) -> Task:
    """Set and queries moved by what its mean differs from that of the labelled points, and scaled to length 1."""
    if task.others.shape[-2] == 0:
        return task
    shift = task.support.flatten(-3, -2).mean(-2, keepdim=True) - task.others.mean(-2, keepdim=True)
    return Task(task.support, unit(task.others + shift), unit(task.query + shift))


def rectified(task: Task, scale: float | Tensor, most: int) -> Tensor:
    """Means of labelled points and the ``most`` surest others of a class, weighted by softmax(scale cos): (..., N, D).

    The cosines are those with the mean of the labelled points of the class. Points that are as sure as the last of the
    ``most`` join, too: the answer does not depend on their order.
    """
    directions = unit(task.support.mean(-2))  # (..., N, D)
    own = (task.support @ directions.unsqueeze(-1)).squeeze(-1)  # (..., N, K)
    cosines = directions @ task.others.mT  # (..., N, S)
    nearest = cosines == cosines.amax(-2, keepdim=True) if cosines.shape[-1] else cosines > 0
    sure = cosines.masked_fill(~nearest, -math.inf)
    if sure.shape[-1] > most:
        sure = sure.masked_fill(sure < sure.topk(most).values[..., -1:], -math.inf)
    weights = torch.softmax(scale * torch.cat([own, sure], dim=-1), dim=-1)
    shots = own.shape[-1]
    labelled = (weights[..., :shots].unsqueeze(-2) @ task.support).squeeze(-2)
    return labelled + weights[..., shots:] @ task.others
