"""Infinite Mixture Prototypes (Allen et al., ICML 2019): as many clusters for a class as its points ask for.

Clusters are Gaussians of variance sigma, one for those of the classes and one for those of unlabelled points. A point
opens a cluster of its own if its squared distance to all there are is above

    lambda = -2 sigma log(alpha) + D sigma log(1 + rho / sigma)

with rho the variance of the class means, averaged over the D dimensions.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from .. import functional as F
from ..episode import Episode
from ..errors import HandfulError
from .base import Forms, Method, Range, with_and_without

_PLAIN = {"scale": 1.0, "cluster_scale": 1.0}
LEAST_MASS = 1e-3  # a cluster to which fewer points than this count is closed again


class Mixture(NamedTuple):
    """The clusters of each class: means (..., N, C, D), and which of the C are in use (..., N, C)."""

    means: Tensor
    in_use: Tensor


class InfiniteMixture(Method):
    """Logits are -|x - m|^2 / (2 sigma) for the nearest cluster mean m of each class, up to a constant per query.

    Each class starts with a cluster at its mean. Labelled points that are far from those of their class open more, then
    unlabelled points that are far from all open clusters of no class. Labelled points are shared out softly among the
    clusters of their class, unlabelled ones among all, and each mean is taken once over its points. The shares carry no
    gradient to the vectors; the variances learn through them.

    Args:
        alpha: concentration; the smaller, the farther a point must be to open a cluster. At 0 none ever does.
        sigma: where the two learned variances start.
        learn_sigma_unlabelled: whether that of the clusters of unlabelled points is learned, or stays.
        max_clusters: most clusters of a class, and most clusters of unlabelled points.
    """

    title = "IMP"
    summary = "Infinite Mixture Prototypes: classes get more clusters where their points ask for them"
    tunables: ClassVar[dict[str, Range]] = {"cluster_scale": Range(0.1, 10.0)}
    forms: ClassVar[Forms] = {
        "published": {**_PLAIN, "alpha": 1e-5, "sigma": 15.0, "learn_sigma_unlabelled": True},  # of miniImageNet
        "published-tiered": {**_PLAIN, "alpha": 0.1, "sigma": 1.0, "learn_sigma_unlabelled": False},
        "published-omniglot": {**_PLAIN, "alpha": 0.1, "sigma": 5.0, "learn_sigma_unlabelled": False},
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        alpha: float = 0.1,
        sigma: float = 5.0,
        learn_sigma_unlabelled: bool = True,
        max_clusters: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        if not 0 <= alpha <= 1:
            raise HandfulError(f"alpha must be a number from 0 to 1, got {alpha}")
        if not (sigma > 0 and math.isfinite(sigma)):
            raise HandfulError(f"sigma must be a number above 0, got {sigma}")
        if max_clusters < 1:
            raise HandfulError(f"max_clusters must be at least 1, got {max_clusters}")
        self.alpha, self.max_clusters = alpha, max_clusters
        self.log_sigma_labelled = nn.Parameter(torch.tensor(math.log(sigma)))
        self.log_sigma_unlabelled = nn.Parameter(torch.tensor(math.log(sigma)), requires_grad=learn_sigma_unlabelled)

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return with_and_without(self._logits, episode, iterations)

    def _logits(self, episode: Episode) -> Tensor:
        means, in_use = self.cluster(episode)
        # As in F.projected_logits, but around the mean of the classes, whatever clusters there are: the constant per
        # query is that of PN.
        centre = episode.centroids.mean(-2).unsqueeze(-2)
        around = means.flatten(-3, -2) - centre
        logits = 2 * episode.query @ around.mT - (around * (around + 2 * centre)).sum(-1).unsqueeze(-2)
        logits = logits.masked_fill(~in_use.flatten(-2).unsqueeze(-2), -math.inf)
        nearest = logits.reshape(*logits.shape[:-1], *in_use.shape[-2:]).amax(-1)
        return nearest * (self.scale * torch.exp(-self.log_sigma_labelled) / 2)

    def cluster(self, episode: Episode) -> Mixture:
        """The clusters of each class after their one re-estimation."""
        support, unlabelled, centroids = (x.detach() for x in (episode.support, episode.unlabelled, episode.centroids))
        means = centroids.unsqueeze(-2)  # (..., N, 1, D)
        nearest = F.projected_sqdist(support, means, None).squeeze(-1)  # (..., N, K)
        limit = self._threshold(centroids, self.log_sigma_labelled).unsqueeze(-1)
        more, opened = _open(support, nearest, limit, min(episode.shots, self.max_clusters - 1))
        means = torch.cat([means, more], dim=-2)  # (..., N, C, D)
        in_use = nn.functional.pad(opened, (1, 0), value=True)

        precision = self.soft_scale * torch.exp(-self.log_sigma_labelled) / 2
        fit = -precision * F.projected_sqdist(support, means, None)  # (..., N, K, C)
        shares = torch.softmax(fit.masked_fill(~in_use.unsqueeze(-2), -math.inf), dim=-1)
        mass, total = shares.sum(-2), shares.mT @ episode.support  # (..., N, C), (..., N, C, D)
        if unlabelled.shape[-2]:
            extra = self._shares(unlabelled, means.flatten(-3, -2), in_use.flatten(-2), centroids)  # (..., U, N * C)
            mass = mass + extra.sum(-2).reshape(mass.shape)
            total = total + (extra.mT @ episode.unlabelled).reshape(total.shape)
        in_use = in_use & (mass.detach() >= LEAST_MASS)
        return Mixture(total / torch.where(in_use, mass, torch.ones_like(mass)).unsqueeze(-1), in_use)

    def _shares(self, unlabelled: Tensor, means: Tensor, in_use: Tensor, centroids: Tensor) -> Tensor:
        """Unlabelled points (..., U, D) among the classes' clusters (..., C, D): -> (..., U, C), the rest to others."""
        distance, closed = F.projected_sqdist(unlabelled, means, None), ~in_use.unsqueeze(-2)
        limit = self._threshold(centroids, self.log_sigma_unlabelled)
        others, opened = _open(unlabelled, distance.masked_fill(closed, math.inf).amin(-1), limit, self.max_clusters)
        kinds = (
            (distance, closed, self.log_sigma_labelled),
            (F.projected_sqdist(unlabelled, others, None), ~opened.unsqueeze(-2), self.log_sigma_unlabelled),
        )
        fits = [
            (-self.soft_scale * d * torch.exp(-log_sigma) / 2 - self.dim / 2 * log_sigma).masked_fill(unused, -math.inf)
            for d, unused, log_sigma in kinds
        ]
        return torch.softmax(torch.cat(fits, dim=-1), dim=-1)[..., : means.shape[-2]]

    def _threshold(self, centroids: Tensor, log_sigma: Tensor) -> Tensor:
        """lambda: class means (..., N, D) -> (...)."""
        sigma = log_sigma.detach().exp()
        rho = centroids.var(-2, correction=min(1, centroids.shape[-2] - 1)).mean(-1)
        rarity = -2 * math.log(self.alpha) if self.alpha > 0 else math.inf
        return sigma * (rarity + self.dim * torch.log1p(rho / sigma))


def _open(points: Tensor, nearest: Tensor, limit: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Open clusters at points that are far from all clusters, the farthest first.

    Args:
        points: (..., P, D).
        nearest: (..., P) squared distance of each point to the nearest cluster there is.
        limit: (...) squared distance above which a point opens a cluster.
        most: how many may be opened.

    Returns:
        Where: (..., C, D), with C as many as any task of the batch opens; and whether this task does: (..., C).
    """
    centres, opened = [points[..., :0, :]], [torch.zeros_like(points[..., :0, 0], dtype=torch.bool)]
    for _ in range(most):
        distance, index = nearest.max(-1)
        new = (distance > limit).unsqueeze(-1)  # (..., 1)
        if not new.any():
            break
        centre = torch.take_along_dim(points, index[..., None, None], dim=-2)  # (..., 1, D)
        centres.append(centre)
        opened.append(new)
        closer = torch.minimum(nearest, F.projected_sqdist(points, centre, None).squeeze(-1))
        nearest = torch.where(new, closer, nearest)
    return torch.cat(centres, dim=-2), torch.cat(opened, dim=-1)
