"""Matching Networks (Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, NeurIPS 2016), labelled images only."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .._linalg import unit
from ..episode import Episode
from .base import Method, Range


class MatchingNetwork(Method):
    """A query attends to the labelled images, by the softmax of ``scale`` times its cosines, and takes their labels.

    The probability of a class is the attention to its images, so its logit is the logarithm of their sum of
    exp(scale cos).

    Args:
        scale: multiplies the cosines.
        learn_scale: whether the scale is learned; it starts at ``scale``.
    """

    title = "Matching Networks"
    summary = "attention to the labelled images by cosine, labelled images only"
    tunables: ClassVar[dict[str, Range]] = {"scale": Range(0.1, 10.0)}
    iterative = False
    training_free = True

    def __init__(self, dim: int, ways: int, *, scale: float = 10.0, learn_scale: bool = False, **options: Any) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        if learn_scale:
            self.learn_scale()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        support = unit(episode.support).flatten(-3, -2)
        cosines = unit(episode.query) @ support.mT  # (..., Q, N K)
        cosines = cosines.reshape(*cosines.shape[:-1], episode.ways, episode.shots)
        return torch.logsumexp(self.scale * cosines, dim=-1).unsqueeze(0)
