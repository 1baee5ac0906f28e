"""ICI (Wang, Xu, Liu, Zhang and Fu, "Instance Credibility Inference for Few-Shot Learning", CVPR 2020).

A classifier labels the set. Which of its labels are credible is told by a linear regression Y = Z b + g of all labels
on a few principal components Z, in which each point i has a row g_i of its own that makes up for a wrong label. With
R = I - Z (Z^T Z)^-1 Z^T, the rows minimise

    1/2 |R (Y - g)|^2 + l sum over i of |g_i|

for a sequence of falling l. A point whose row stays small on the way is credible.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from .adapting import AdaptingMethod, Task, check_at_least
from .base import Range
from .ilpc import LAST_STEPS, linear_classifier

PENALTIES, LEAST_PENALTY = 15, 0.01  # numbers l, from where all rows are 0 down to this share of it
STEPS = 10  # of proximal gradient descent for each


class CredibilityInference(AdaptingMethod):
    """Logits are those of a linear classifier of the labelled points and of the most credible points of the set.

    In round r the classifier of the round before labels the set, and the ``best`` * r most credible points of each
    class join the labelled ones.

    Args:
        components: principal components of all points that the regression uses.
        best: points that a class gets in the first round, and more in each further one.
        rounds: of these.
        steps: of the classifiers that label the set.
    """

    title = "ICI"
    summary = "a linear classifier of labelled images and of unlabelled ones whose found labels are credible"
    tunables: ClassVar[dict[str, Range]] = {
        "components": Range(5, 40, "whole"),
        "best": Range(1, 6, "whole"),
        "rounds": Range(1, 4, "whole"),
    }
    unused = ("cluster_scale",)

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        components: int = 20,
        best: int = 3,
        rounds: int = 3,
        steps: int = 30,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        check_at_least(1, components=components, best=best, rounds=rounds, steps=steps)
        self.components, self.best, self.rounds, self.steps = components, best, rounds, steps

    def classify(self, task: Task) -> Tensor:
        points, given = task.points, task.labels
        gram = points @ points.mT
        labels = torch.nn.functional.pad(given, (0, 0, 0, task.others.shape[-2])).expand(*points.shape[:-2], -1, -1)
        if task.others.shape[-2]:
            with torch.no_grad():
                labels = self.label(gram.detach(), labels, len(given))
        weights, bias, _ = linear_classifier(gram, labels, labels, LAST_STEPS)
        return self.scale * ((task.query @ points.mT) @ weights + bias)

    def label(self, gram: Tensor, labels: Tensor, labelled: int) -> Tensor:
        """One-hot labels (..., n, N) of labelled and credible points, zero rows for the others."""
        residual = residual_projection(gram, self.components)
        known, ways = labels[..., :labelled, :], labels.shape[-1]
        for number in range(1, self.rounds + 1):
            weights, bias, _ = linear_classifier(gram, labels, labels, self.steps)
            found = (gram @ weights + bias).argmax(-1)[..., labelled:]
            found = torch.nn.functional.one_hot(found, ways).to(labels)  # (..., S, N)
            doubt = incredibility(residual, torch.cat([known, found], dim=-2))[..., labelled:]
            rank = (-doubt).unsqueeze(-1).masked_fill(found == 0, -math.inf)
            least = rank.topk(min(self.best * number, rank.shape[-2]), dim=-2).values[..., -1:, :]
            labels = torch.cat([known, found * (rank >= least)], dim=-2)
        return labels


def residual_projection(gram: Tensor, components: int) -> Tensor:
    """R (..., n, n) of the first principal components of centred points, from their inner products (..., n, n)."""
    middle = gram.mean((-2, -1), keepdim=True)
    centred = gram - gram.mean(-1, keepdim=True) - gram.mean(-2, keepdim=True) + middle
    main = torch.linalg.eigh(centred)[1][..., -components:]
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    found: Tensor = eye - main @ main.mT
    return found


def incredibility(residual: Tensor, labels: Tensor) -> Tensor:
    """Lengths of the rows g_i, summed over the sequence of penalties: (..., n, n), (..., n, N) -> (..., n)."""
    rows, total = torch.zeros_like(labels), torch.zeros_like(labels[..., 0])
    most = torch.linalg.vector_norm(residual @ labels, dim=-1).amax(-1)[..., None, None]
    for number in range(PENALTIES):
        penalty = most * LEAST_PENALTY ** (number / (PENALTIES - 1))
        for _ in range(STEPS):  # the squared part has eigenvalues 0 and 1: a step of 1 is the largest that is safe
            moved = rows - residual @ (rows - labels)
            length = torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)
            rows = moved * (1 - penalty / length).clamp_min(0)
        total = total + torch.linalg.vector_norm(rows, dim=-1)
    return total
