"""The three semi-supervised refinements of Prototypical Networks of Ren et al., ICLR 2018.

All cluster in the embedding space: soft labels for the unlabelled points from the distances to the class means, then
means over labelled and softly labelled points. They differ in what they do about distractors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional as F
from ..episode import Episode
from ..errors import HandfulError
from .base import Method


class SoftKMeans(Method):
    """Plain soft k-means from the class means. The soft labels carry no gradient, as in the authors' code."""

    title = "Soft k-Means"
    summary = "PN with class means refined by soft k-means over the unlabelled images"

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        unlabelled = episode.unlabelled
        steps = F.refinements(
            episode.centroids, episode.shots, unlabelled, iterations, lambda means: self.weights(unlabelled, means)
        )
        return torch.stack([self.scale * F.projected_logits(episode.query, means, basis=None) for means in steps])

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        """How much each unlabelled point counts for each class: (..., U, D), (..., N, D) -> (..., U, N)."""
        return F.soft_labels(unlabelled, means, None, self.soft_scale).detach()


class SoftKMeansCluster(SoftKMeans):
    """One more cluster at the origin takes the distractors; its length scale is learned.

    Class n has p(n | x) proportional to exp(-|x - c_n|^2 / r_n^2 - log r_n), with r = 1 for the classes and a learned
    r for the distractor cluster at 0.

    Args:
        length_scale: where the learned length scale starts; 100 as in the authors' code. That is wide: at first the
            cluster takes what is farther than about log(100) from every class, wherever it lies.
    """

    title = "Soft k-Means + Cluster"
    summary = "Soft k-Means with a distractor cluster at the origin, of learned length scale"

    def __init__(self, dim: int, ways: int, *, length_scale: float = 100.0, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise HandfulError(f"length_scale must be a number above 0, got {length_scale}")
        self.log_length = nn.Parameter(torch.tensor(math.log(length_scale)))

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        origin = torch.zeros_like(means[..., :1, :])
        # The learned scale needs true distances: a constant per point would not cancel between unequal scales.
        distance = F.projected_sqdist(unlabelled, torch.cat([means, origin], dim=-2), basis=None)
        distance = self.soft_scale * distance.detach()
        inside, outside = distance[..., :-1], distance[..., -1:] * torch.exp(-2 * self.log_length) + self.log_length
        return torch.softmax(-torch.cat([inside, outside], dim=-1), dim=-1)[..., :-1]


class MaskedSoftKMeans(SoftKMeans):
    """Each class ignores points beyond a soft threshold that a small network reads off the distances to it.

    With d the distances of the unlabelled points to class n divided by their mean, the network maps (min, max,
    variance, skewness, kurtosis) of d to a threshold b and a slope g; point j counts sigmoid(-g (d_j - b)) of its soft
    label.
    """

    title = "Masked Soft k-Means"
    summary = "Soft k-Means with learned soft masks from distance statistics"

    def __init__(self, dim: int, ways: int, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        last = nn.Linear(20, 2)
        with torch.no_grad():  # start by counting most of what is nearer than the average point
            last.bias.copy_(torch.tensor([1.0, 5.0]))
        self.mask = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), last)

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        soft = super().weights(unlabelled, means)
        if unlabelled.shape[-2] == 0:
            return soft
        distance = F.projected_sqdist(unlabelled, means, basis=None).detach()  # (..., U, N)
        distance = distance / distance.mean(-2, keepdim=True).clamp_min(torch.finfo(distance.dtype).tiny)
        threshold, slope = self.mask(_statistics(distance)).unsqueeze(-3).unbind(-1)  # (..., 1, N) each
        return soft * torch.sigmoid(-slope * (distance - threshold))


def _statistics(distance: Tensor) -> Tensor:
    """Min, max, variance, skewness and kurtosis over the points: (..., U, N) -> (..., N, 5)."""
    centred = distance - distance.mean(-2, keepdim=True)
    variance = centred.square().mean(-2)
    deviation = variance.sqrt().clamp_min(1e-6)
    skewness = centred.pow(3).mean(-2) / deviation.pow(3)
    kurtosis = centred.pow(4).mean(-2) / deviation.pow(4) - 3
    return torch.stack([distance.amin(-2), distance.amax(-2), variance, skewness, kurtosis], dim=-1)
