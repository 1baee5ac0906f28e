"""PADDLE (Martin et al., "Towards Practical Few-Shot Query Sets", NeurIPS 2022): soft k-means with few classes in use.

The set is clustered with a penalty on how many classes it uses, so that classes that are absent from it get no points.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import functional as F
from ..errors import HandfulError
from .adapting import AdaptingMethod, Task, check_at_least
from .base import Range


class PartitionPenalty(AdaptingMethod):
    """Soft k-means whose soft labels are drawn to classes that have many points already.

    p_in = softmax over n of (-scale d_in / 2 + penalty * log pi_n), with pi_n the mean of p_in over the set before, and
    even in the first step; then the class means over labelled and softly labelled points. Logits of a query are the
    same, with the last means and pi.

    Args:
        scale: multiplies half the squared distances.
        penalty: lambda divided by the size of the set.
        steps: how often labels and means are computed.
    """

    title = "PADDLE"
    summary = "soft k-means with a penalty on the number of classes among the unlabelled images"
    tunables: ClassVar[dict[str, Range]] = {"scale": Range(0.1, 10.0), "penalty": Range(0.1, 10.0)}

    def __init__(
        self, dim: int, ways: int, *, scale: float = 10.0, penalty: float = 0.4, steps: int = 20, **options: Any
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(1, steps=steps)
        if not penalty >= 0:
            raise HandfulError(f"penalty must be a number from 0 up, got {penalty}")
        self.penalty, self.steps = penalty, steps

    def classify(self, task: Task) -> Tensor:
        means = task.support.mean(-2)
        bias = torch.zeros_like(means[..., 0]).unsqueeze(-2)  # (..., 1, N)
        if task.others.shape[-2] == 0:
            return self.scale * 0.5 * F.projected_logits(task.query, means, None)

        def label_softly(means: Tensor) -> Tensor:
            nonlocal bias
            logits = self.soft_scale * 0.5 * F.projected_logits(task.others, means, None)
            soft = torch.softmax(logits + bias, dim=-1)
            bias = self.penalty * torch.log(soft.mean(-2, keepdim=True) + LEAST_SHARE)
            return soft

        *_, last = F.refinements(means, task.support.shape[-2], task.others, self.steps, label_softly)
        return self.scale * 0.5 * F.projected_logits(task.query, last, None) + bias


LEAST_SHARE = 1e-6  # added to the share of a class before its logarithm is taken, as in the authors' code
