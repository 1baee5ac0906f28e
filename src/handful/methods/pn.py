"""Prototypical Networks (Snell, Swersky and Zemel, NeurIPS 2017): nearest class mean, labelled images only."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from .. import functional as F
from .._linalg import unit
from ..episode import Episode
from .base import Forms, Method


class PrototypicalNetwork(Method):
    """Logits are negative squared distances to the class means in the embedding space.

    Args:
        cosine: compare by cosines with the class means, times ``scale``, instead.
        learn_scale: whether the scale is learned; it starts at ``scale``.
    """

    title = "PN"
    summary = "Prototypical Networks: nearest class mean, labelled images only"
    iterative = False
    forms: ClassVar[Forms] = {"published": {"scale": 1.0, "cosine": False, "learn_scale": False}}

    def __init__(self, dim: int, ways: int, *, cosine: bool = False, learn_scale: bool = False, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        self.cosine = cosine
        if learn_scale:
            self.learn_scale()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return (self.scale * mean_logits(episode.query, episode.centroids, cosine=self.cosine)).unsqueeze(0)


def mean_logits(points: Tensor, means: Tensor, *, cosine: bool) -> Tensor:
    """Cosines with the means, or negative squared distances up to a constant per point: -> (..., points, N)."""
    return unit(points) @ unit(means).mT if cosine else F.projected_logits(points, means, basis=None)
