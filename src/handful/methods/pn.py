"""Prototypical Networks (Snell, Swersky and Zemel, NeurIPS 2017): nearest class mean, labelled images only."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .. import functional as F
from ..episode import Episode
from .base import Forms, Method


class PrototypicalNetwork(Method):
    """Logits are negative squared distances to the class means in the embedding space."""

    title = "PN"
    summary = "Prototypical Networks: nearest class mean, labelled images only"
    iterative = False
    forms: ClassVar[Forms] = {"published": {"scale": 1.0}}

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.scale * F.projected_logits(episode.query, episode.centroids, basis=None).unsqueeze(0)
