"""iLPC (Lazarou, Stathaki and Avrithis, "Iterative Label Cleaning for Transductive and Semi-Supervised Few-Shot
Learning", ICCV 2021): labels that are propagated, balanced, cleaned and added, the best of each class first.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._linalg import inverse
from ..errors import HandfulError
from .adapting import AdaptingMethod, Task, check_at_least, nearest
from .base import Range
from .pt_map import transport

MOMENTUM, DECAY, RATE = 0.9, 5e-4, 1.0  # of the linear classifier; the rate is ten times the authors', in fewer steps
LAST_STEPS = 100  # of the classifier that answers


class LabelCleaning(AdaptingMethod):
    """Logits are those of a linear classifier of the labelled points and of all of the set, by their found labels.

    Until all have one, again and again:

    1. labels are propagated along a graph of nearest neighbours, whose weights are the cubes of their cosines;
    2. the scores to a power are balanced, so that the classes share the rest of the set evenly, and points take the
       best class;
    3. a linear classifier learns all these labels, and the points of each class whose loss is least on average over
       its steps keep their label.

    Args:
        neighbours: of each point.
        alpha: how much of a point's label comes from its neighbours, below 1.
        power: of the scores before they are balanced; ``cluster_scale`` multiplies it.
        best: points that a class gets in a round.
        steps: of the linear classifier that cleans, which is trained anew each time.
    """

    title = "iLPC (even classes)"
    summary = "labels propagated along a graph, balanced and cleaned; the surest are added round by round"
    tunables: ClassVar[dict[str, Range]] = {
        "neighbours": Range(5, 30, "whole"),
        "alpha": Range(0.4, 0.95, "number"),
        "cluster_scale": Range(0.3, 3.0),
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        neighbours: int = 15,
        alpha: float = 0.8,
        power: float = 3.0,
        best: int = 3,
        steps: int = 30,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        check_at_least(1, neighbours=neighbours, best=best, steps=steps)
        if not 0 < alpha < 1:
            raise HandfulError(f"alpha must be a number between 0 and 1, got {alpha}")
        if not power > 0:
            raise HandfulError(f"power must be a number above 0, got {power}")
        self.neighbours, self.alpha, self.power, self.best, self.steps = neighbours, alpha, power, best, steps

    def classify(self, task: Task) -> Tensor:
        points, given = task.points, task.labels
        labelled, count = len(given), task.others.shape[-2]
        gram = points @ points.mT
        labels = torch.nn.functional.pad(given, (0, 0, 0, count)).expand(*points.shape[:-2], -1, -1)
        if count:
            with torch.no_grad():
                labels = self.label(gram.detach(), labels, labelled)
        weights, bias, _ = linear_classifier(gram, labels, labels, LAST_STEPS)
        return self.scale * ((task.query @ points.mT) @ weights + bias)

    def label(self, gram: Tensor, labels: Tensor, labelled: int) -> Tensor:
        """One-hot labels (..., n, N) of all points, from those of the first ``labelled`` and inner products."""
        ways, count = labels.shape[-1], labels.shape[-2] - labelled
        reach = propagation(gram, self.neighbours, self.alpha)
        known = torch.zeros_like(labels[..., 0])  # (..., n)
        known[..., :labelled] = 1
        found = labels
        for _ in range(math.ceil(count / (ways * self.best))):
            scores = (reach @ (labels * known.unsqueeze(-1))).clamp_min(torch.finfo(labels.dtype).tiny)
            logits = self.power * self.cluster_scale * scores.log()
            even = logits + transport(logits, weights=1 - known).unsqueeze(-2)
            found = torch.nn.functional.one_hot(even.argmax(-1), ways).to(labels)
            found = torch.where(known.unsqueeze(-1) > 0, labels, found)
            _, _, loss = linear_classifier(gram, found, labels * known.unsqueeze(-1), self.steps)
            # Of the points that have no label for good, the best of each class by loss.
            free = (found > 0) & (known.unsqueeze(-1) == 0)
            rank = (-loss).unsqueeze(-1).masked_fill(~free, -math.inf)  # (..., n, N)
            least = rank.topk(min(self.best, rank.shape[-2]), dim=-2).values[..., -1:, :]
            chosen = (free & (rank >= least)).any(-1)
            labels = torch.where(chosen.unsqueeze(-1), found, labels)
            known = torch.where(chosen, torch.ones_like(known), known)
        return torch.where(known.unsqueeze(-1) > 0, labels, found)


def linear_classifier(gram: Tensor, labels: Tensor, first: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train a linear classifier of points by gradient descent, in inner products of points alone.

    Args:
        gram: (..., n, n).
        labels: (..., n, N) one-hot; points whose row is zero take no part.
        first: (..., n, N) labels whose unit class means it starts at.
        steps: of gradient descent.

    Returns:
        c (..., n, N), with weights c^T X; biases (..., 1, N); and the mean loss of each point over the steps (..., n).
    """
    means = first / first.sum(-2, keepdim=True)
    weights = means / (means * (gram @ means)).sum(-2, keepdim=True).clamp_min(torch.finfo(gram.dtype).eps).sqrt()
    bias = torch.zeros_like(weights[..., :1, :])
    speed, bias_speed, losses = torch.zeros_like(weights), torch.zeros_like(bias), torch.zeros_like(weights[..., 0])
    counted = labels.sum(-1, keepdim=True)
    share = counted / counted.sum(-2, keepdim=True)
    for _ in range(steps):
        log_soft = torch.log_softmax(gram @ weights + bias, dim=-1)
        losses = losses - (labels * log_soft).sum(-1)
        residual = share * (log_soft.exp() - labels)
        speed = MOMENTUM * speed + residual + DECAY * weights
        bias_speed = MOMENTUM * bias_speed + residual.sum(-2, keepdim=True) + DECAY * bias
        weights, bias = weights - RATE * speed, bias - RATE * bias_speed
    return weights, bias, losses / steps


def propagation(gram: Tensor, neighbours: int, alpha: float) -> Tensor:
    """(I - alpha S)^-1 of the graph of nearest neighbours of unit vectors, weighted by the cubes of cosines."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    kept = nearest(gram, neighbours, itself=True) * gram.clamp_min(0) ** 3
    weights = (kept + kept.mT) * (1 - eye)
    degrees = weights.sum(-1)
    root = torch.where(degrees > 0, degrees, torch.ones_like(degrees)).rsqrt()
    return inverse(eye - alpha * root.unsqueeze(-1) * weights * root.unsqueeze(-2))
