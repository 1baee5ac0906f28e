"""alpha-TIM (Veilleux et al., "Realistic Evaluation of Transductive Few-Shot Learning", NeurIPS 2021).

Class weights w_n are moved by gradient descent on

    labelled CE - H_a(mean over the set of p) + mean over the set of H_a(p),     H_a(p) = (1 - sum p^a) / (a - 1)

with p = softmax(-scale |x - w_n|^2 / 2): certain for each point, and spread over the classes, but with a > 1 not
necessarily evenly. For a = 1, H is the entropy, and the method TIM (Boudiaf et al., NeurIPS 2020).
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
        alpha: of the entropies; at 1 it is TIM, whose classes should be even.
        certainty: weight of the last term, the entropy of each point; TIM has 0.1.
        cosine: take scale times the cosine of x and w_n for its squared distance, as EasyFSL's TIM does.
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
        certainty: float = 1.0,
        cosine: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(0, steps=steps)
        if not alpha > 0:
            raise HandfulError(f"alpha must be a number above 0, got {alpha}")
        if not certainty >= 0:
            raise HandfulError(f"certainty must be a number from 0 up, got {certainty}")
        self.certainty, self.cosine = certainty, cosine
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
            logits = self._logits_of(weights, gram, gram)
            residual = self._residual(
                self.soft_scale * logits, given, labelled
            )  # derivative by the logits, (..., n, N)
            if self.cosine:  # d logit / d w_n = scale (x / |w_n| - cos w_n / |w_n|^2)
                squares = _squares(weights, gram)
                slope = residual * squares.rsqrt() - weights * (residual * logits).sum(-2, keepdim=True) / squares
            else:  # d logit / d w_n = scale (x - w_n)
                slope = residual - weights * residual.sum(-2, keepdim=True)
            speed = self.momentum * speed + slope
            weights = weights - self.rate * speed
        return self.scale * self._logits_of(weights, gram, task.query @ points.mT)

    def _logits_of(self, weights: Tensor, gram: Tensor, products: Tensor) -> Tensor:
        """x . w_n - |w_n|^2 / 2, or cosines, from c (..., n, N), G (..., n, n) and X x (..., P, n): -> (..., P, N)."""
        if self.cosine:
            return products @ weights * _squares(weights, gram).rsqrt()
        return products @ weights - 0.5 * _squares(weights, gram)

    def _residual(self, logits: Tensor, given: Tensor, labelled: int) -> Tensor:
        """Derivative of the loss by the logits of all points: (..., n, N)."""
        soft = torch.softmax(logits, dim=-1)
        known, found = soft[..., :labelled, :], soft[..., labelled:, :]
        power, count = self.alpha - 1, found.shape[-2]
        even, sure = (self._power(part, power) for part in (found.mean(-2, keepdim=True), found))
        slope = (even - self.certainty * sure) / count
        moved = found * (slope - (found * slope).sum(-1, keepdim=True))
        return torch.cat([(known - given) / labelled, moved], dim=-2)

    def _power(self, soft: Tensor, power: float) -> Tensor:
        """Derivative of -H by p, up to a constant: alpha p^(alpha - 1) / (alpha - 1), or log p."""
        if power == 0:
            return soft.clamp_min(torch.finfo(soft.dtype).tiny).log()
        return self.alpha / power * soft**power


def _squares(weights: Tensor, gram: Tensor) -> Tensor:
    """|w_n|^2 from c (..., n, N) and G (..., n, n): -> (..., 1, N)."""
    return (weights * (gram @ weights)).sum(-2, keepdim=True).clamp_min(torch.finfo(gram.dtype).eps)
