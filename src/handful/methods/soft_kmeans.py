"""The three semi-supervised refinements of Prototypical Networks of Ren et al., ICLR 2018.

All cluster in the embedding space: soft labels for the unlabelled points from the distances to the class means, then
means over labelled and softly labelled points. They differ in what they do about distractors.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import functional as F
from .._linalg import unit
from ..episode import Episode
from ..errors import HandfulError
from .base import Forms, Method
from .pn import mean_logits

_PLAIN = {"cosine": False, "learn_scale": False}
UNUSED_LENGTH = 1e5  # length scale of the distractor cluster where no image is unlabelled, as in the authors' code


class SoftKMeans(Method):
    """Plain soft k-means from the class means. The soft labels carry no gradient, as in the authors' code.

    Args:
        cosine: compare by cosines with the class means, in logits and soft labels, instead of by squared distances.
        learn_scale: whether the scale is learned; it starts at ``scale``.
        grad_through_soft_labels: whether the soft labels are differentiated through.
    """

    title = "Soft k-Means"
    summary = "PN with class means refined by soft k-means over the unlabelled images"
    forms: ClassVar[Forms] = {
        "published": {**_PLAIN, "scale": 1.0, "cluster_scale": 1.0, "iterations": 1, "grad_through_soft_labels": False}
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        cosine: bool = False,
        learn_scale: bool = False,
        grad_through_soft_labels: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        self.cosine, self.grad_through_soft_labels = cosine, grad_through_soft_labels
        if learn_scale:
            self.learn_scale()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        unlabelled, (means, counts) = episode.unlabelled, self.clusters(episode)
        steps = F.refinements(means, counts, unlabelled, iterations, lambda means: self.weights(unlabelled, means))
        return torch.stack([self.query_logits(episode, means) for means in steps])

    def clusters(self, episode: Episode) -> tuple[Tensor, int | Tensor]:
        """The means that are refined (..., N, D), and how many labelled points stand behind each."""
        return episode.centroids, episode.shots

    def query_logits(self, episode: Episode, means: Tensor) -> Tensor:
        return self.scale * mean_logits(episode.query, means, cosine=self.cosine)

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        """How much each unlabelled point counts for each class: (..., U, D), (..., N, D) -> (..., U, N)."""
        return self._constant(F.soft_labels(unlabelled, means, None, self.soft_scale, cosine=self.cosine))

    def distances(self, points: Tensor, means: Tensor) -> Tensor:
        """Squared distances; with ``cosine``, half of those of unit vectors, 1 - cos: -> (..., P, M).

        Such a vector stays zero if it is, so that the origin is at 1 / 2 from every point.
        """
        if self.cosine:
            return 0.5 * F.projected_sqdist(unit(points), unit(means), basis=None)
        return F.projected_sqdist(points, means, basis=None)

    def _constant(self, tensor: Tensor) -> Tensor:
        return tensor if self.grad_through_soft_labels else tensor.detach()


class SoftKMeansCluster(SoftKMeans):
    """One more cluster at the origin takes the distractors; its length scale is learned.

    Class n has p(n | x) proportional to exp(-|x - c_n|^2 / r_n^2 - log r_n), with r = 1 for the classes and a learned
    r for the distractor cluster at 0.

    Args:
        length_scale: where the learned length scale starts; 100 as in the authors' code. That is wide: at first the
            cluster takes what is farther than about log(100) from every class, wherever it lies.
        moving_cluster: let the cluster move to the mean of its points, as in the authors' code.
        cluster_for_queries: let queries belong to the cluster, too, as there: logits then have N + 1 columns, and a
            query that the cluster takes is wrong.
        grad_through_soft_labels: whether the soft labels are differentiated through, as there; the length scale learns
            through them in any case.

    With ``cosine``, the squared distance is half of that between unit vectors, 1 - cos, and 1 / 2 to the origin.
    """

    title = "Soft k-Means + Cluster"
    summary = "Soft k-Means with a distractor cluster at the origin, of learned length scale"
    forms: ClassVar[Forms] = {
        "published": {
            **_PLAIN,
            "scale": 0.5,
            "cluster_scale": 1.0,
            "iterations": 1,
            "length_scale": 100.0,
            "moving_cluster": True,
            "cluster_for_queries": True,
            "grad_through_soft_labels": True,
        }
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        length_scale: float = 100.0,
        moving_cluster: bool = False,
        cluster_for_queries: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        self.moving_cluster, self.cluster_for_queries = moving_cluster, cluster_for_queries
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise HandfulError(f"length_scale must be a number above 0, got {length_scale}")
        self.log_length = nn.Parameter(torch.tensor(math.log(length_scale)))

    def clusters(self, episode: Episode) -> tuple[Tensor, int | Tensor]:
        means, shots = super().clusters(episode)
        if not self.moving_cluster:
            return means, shots
        counts = torch.full((episode.ways + 1,), float(shots), dtype=means.dtype, device=means.device)
        counts[-1] = 0  # no labelled point stands behind the cluster
        return _with_origin(means), counts

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        # The learned length needs true distances: a constant per point would not cancel between unequal lengths.
        distance = self.distances(unlabelled, means if self.moving_cluster else _with_origin(means))
        shares = torch.softmax(_radial(self._constant(self.soft_scale * distance), self.log_length), dim=-1)
        return shares if self.moving_cluster else shares[..., :-1]

    def query_logits(self, episode: Episode, means: Tensor) -> Tensor:
        if not self.cluster_for_queries:
            return super().query_logits(episode, means[..., : episode.ways, :])
        if not self.moving_cluster:
            means = _with_origin(means)
        unused = episode.unlabelled.shape[-2] == 0
        length = torch.full_like(self.log_length, math.log(UNUSED_LENGTH)) if unused else self.log_length
        return _radial(self.scale * self.distances(episode.query, means), length)


def _with_origin(means: Tensor) -> Tensor:
    return torch.cat([means, torch.zeros_like(means[..., :1, :])], dim=-2)


def _radial(distance: Tensor, log_length: Tensor) -> Tensor:
    """-d / r^2 - log r of squared distances (..., N + 1), with r = 1 for all but the last."""
    inside, outside = distance[..., :-1], distance[..., -1:] * torch.exp(-2 * log_length) + log_length
    return -torch.cat([inside, outside], dim=-1)


class MaskedSoftKMeans(SoftKMeans):
    """Each class ignores points beyond a soft threshold that a small network reads off the distances to it.

    With d the distances of the unlabelled points to class n divided by their mean, the network maps (min, max,
    variance, skewness, kurtosis) of d to a threshold b and a slope g; point j counts sigmoid(-g (d_j - b)) of its soft
    label.

    Args:
        exponential_mask: threshold and slope are exponentials of the network's outputs, and both start at 1, as in the
            authors' code.
        mask_twice: multiply a soft label by its mask twice, as there.
        grad_through_soft_labels: whether soft labels and masks are differentiated through, as there; the statistics
            never are.
    """

    title = "Masked Soft k-Means"
    summary = "Soft k-Means with learned soft masks from distance statistics"
    forms: ClassVar[Forms] = {
        "published": {
            **_PLAIN,
            "scale": 1.0,
            "cluster_scale": 1.0,
            "iterations": 1,
            "exponential_mask": True,
            "mask_twice": True,
            "grad_through_soft_labels": True,
        }
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        exponential_mask: bool = False,
        mask_twice: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        self.exponential_mask, self.mask_twice = exponential_mask, mask_twice
        first, last = nn.Linear(5, 20), nn.Linear(20, 2)
        with torch.no_grad():
            if exponential_mask:
                for layer in (first, last):
                    nn.init.trunc_normal_(layer.weight, std=0.01, a=-0.02, b=0.02)
                    layer.bias.zero_()
            else:  # start by counting most of what is nearer than the average point
                last.bias.copy_(torch.tensor([1.0, 5.0]))
        self.mask = nn.Sequential(first, nn.Tanh(), last)

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        soft = super().weights(unlabelled, means)
        distance = self._constant(self.distances(unlabelled, means))  # (..., U, N)
        if unlabelled.shape[-2] == 0:
            return soft
        distance = distance / distance.mean(-2, keepdim=True).clamp_min(torch.finfo(distance.dtype).tiny)
        read_off = self.mask(_statistics(distance.detach())).unsqueeze(-3)
        threshold, slope = (read_off.exp() if self.exponential_mask else read_off).unbind(-1)  # (..., 1, N) each
        mask = torch.sigmoid(-slope * (distance - threshold))
        return soft * mask * mask if self.mask_twice else soft * mask


def _statistics(distance: Tensor) -> Tensor:
    """Min, max, variance, skewness and kurtosis over the points: (..., U, N) -> (..., N, 5)."""
    centred = distance - distance.mean(-2, keepdim=True)
    variance = centred.square().mean(-2)
    deviation = variance.sqrt().clamp_min(1e-6)
    skewness = centred.pow(3).mean(-2) / deviation.pow(3)
    kurtosis = centred.pow(4).mean(-2) / deviation.pow(4) - 3
    return torch.stack([distance.amin(-2), distance.amax(-2), variance, skewness, kurtosis], dim=-1)
