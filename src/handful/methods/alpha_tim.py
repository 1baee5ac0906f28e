"""alpha-TIM (Veilleux et al., "Realistic Evaluation of Transductive Few-Shot Learning", NeurIPS 2021).

Class weights w_n are moved by gradient descent on

    labelled CE - H_a(mean over the set of p) + mean over the set of H_a(p),     H_a(p) = (1 - sum p^a) / (a - 1)

with p = softmax(-scale |x - w_n|^2 / 2): certain for each point, and spread over the classes, but with a > 1 not
necessarily evenly.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import HandfulError
from .adapting import AdaptingMethod, Task, check_at_least
from .base import Range


class AlphaTim(AdaptingMethod):
    """Logits are -scale |x - w_n|^2 / 2 with the adapted class weights, which start at the class means.

    Args:
        scale: temperature; 15 as in the authors' code.
        alpha: of the entropies; towards 1 it is TIM, whose classes should be even.
        steps: of gradient descent.
        rate: of a step; the gradient is that of the loss above, divided by the temperature.
        momentum: of gradient descent.
    """

    title = "alpha-TIM"
    summary = "class weights that make unlabelled images certain, and their classes not too uneven"
    tunables: ClassVar[dict[str, Range]] = {"scale": Range(0.1, 10.0), "alpha": Range(1.2, 8.0, "number")}

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 15.0,
        alpha: float = 2.0,
        steps: int = 30,
        rate: float = 0.3,
        momentum: float = 0.9,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(0, steps=steps)
        if not (alpha > 0 and alpha != 1):
            raise HandfulError(f"alpha must be a number above 0 other than 1, got {alpha}")
        if not (rate > 0 and 0 <= momentum < 1):
            raise HandfulError(f"rate must be above 0 and momentum from 0 to below 1, got {rate} and {momentum}")
        self.alpha, self.steps, self.rate, self.momentum = alpha, steps, rate, momentum

    def classify(self, task: Task) -> Tensor:
        points, given = task.points, task.labels
        labelled, count = len(given), task.others.shape[-2]
        gram = points @ points.mT
        # w = c^T X, and the gradient by w is a combination of the points and w: only c and inner products are needed.
        weights = torch.nn.functional.pad(given / task.support.shape[-2], (0, 0, 0, count))
        weights = weights.expand(*points.shape[:-2], *weights.shape)  # c, (..., n, N)
        speed = torch.zeros_like(weights)
        for _ in range(self.steps if count else 0):
            logits = self.soft_scale * _products(weights, gram, gram)
            residual = self._residual(logits, given, labelled)  # derivative of the loss by the logits, (..., n, N)
            # d logit / d w_n = scale (x - w_n)
            speed = self.momentum * speed + residual - weights * residual.sum(-2, keepdim=True)
            weights = weights - self.rate * speed
        return self.scale * _products(weights, gram, task.query @ points.mT)

    def _residual(self, logits: Tensor, given: Tensor, labelled: int) -> Tensor:
        """Derivative of the loss by the logits of all points: (..., n, N)."""
        soft = torch.softmax(logits, dim=-1)
        known, found = soft[..., :labelled, :], soft[..., labelled:, :]
        power, count = self.alpha - 1, found.shape[-2]
        slope = self.alpha / power / count * (found.mean(-2, keepdim=True) ** power - found**power)
        moved = found * (slope - (found * slope).sum(-1, keepdim=True))
        return torch.cat([(known - given) / labelled, moved], dim=-2)


def _products(weights: Tensor, gram: Tensor, products: Tensor) -> Tensor:
    """x . w_n - |w_n|^2 / 2 from c (..., n, N), G (..., n, n) and X x (..., P, n): -> (..., P, N)."""
    lengths = (weights * (gram @ weights)).sum(-2, keepdim=True)
    return products @ weights - 0.5 * lengths
