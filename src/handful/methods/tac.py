"""Task-Adaptive Clustering (Seo, Yoon and Moon, 2020): TAC, and TACdap for unlabelled sets with distractors.

The formulas are :func:`handful.functional.tac`; here they get their learned references.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional as F
from .._linalg import project
from ..episode import Episode
from ..errors import HandfulError
from .pn import mean_logits
from .prwn import check_share, walk_loss
from .tapnet import TapNet


class Tac(TapNet):
    """TapNet whose class means, and so whose M, are refined by clustering the unlabelled points in M itself.

    One refinement in training, more in evaluation: stronger adaptation helps at test time and hurts in training.

    Args:
        walk: weight in the loss of a random walk over the unlabelled points, as PRWN's (:func:`.prwn.walk_loss`), from
            the class means of the support and in their space M; 0 for none. PRWN's is 0.5.
    """

    title = "TAC"
    summary = "Task-Adaptive Clustering: clusters the unlabelled images in M, rebuilds M, repeats"
    iterative = True

    def __init__(
        self, dim: int, ways: int, *, walk: float = 0.0, train_iterations: int = 1, iterations: int = 2, **options: Any
    ) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, iterations=iterations, **options)
        check_share("walk", walk)
        self.walk = walk

    @property
    def trains_on_unlabelled(self) -> bool:
        return self.walk > 0 or super().trains_on_unlabelled

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        classes = super().loss(episode, turn)
        if not self.walk or episode.unlabelled.shape[-2] == 0:
            return classes
        means = episode.centroids
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.grad_through_projection):
            basis = F.null_basis(F.error_vectors(means, self.class_references(means)))
        points, means = (
            vectors - self.partial_projection * (vectors - project(vectors, basis))
            for vectors in (episode.unlabelled, means)
        )
        if self.cosine_clustering:
            to_means = mean_logits(points, means, cosine=True)
        else:
            to_means = -F.projected_sqdist(points, means, basis=None)
        between = mean_logits(points, points, cosine=self.cosine_clustering)
        return classes + self.walk * walk_loss(self.soft_scale * to_means, self.soft_scale * between)


class TacDap(Tac):
    """TAC with a distractor-aware projection: one more cluster with a learned reference takes what is in no class.

    Args:
        distractor_handicap: added to the squared distances of the distractor cluster in the soft labels, times V / K,
            with V the variance of the unlabelled points (summed over the dimensions) and K the shots. The mean of K
            points is off the class's true mean by its variance / K, in squared distance, while the distractor cluster,
            the mean of all unlabelled points, is off by next to nothing: with one shot it is nearer to almost every
            point than any class is. At 1 the handicap is the most that this can explain, since V also holds what the
            classes differ by.
    """

    title = "TACdap"
    summary = "TAC with a distractor cluster and reference that shape the clustering space"

    def __init__(self, dim: int, ways: int, *, distractor_handicap: float = 0.0, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        if not (distractor_handicap >= 0 and math.isfinite(distractor_handicap)):
            raise HandfulError(f"distractor_handicap must be a number from 0 up, got {distractor_handicap}")
        if distractor_handicap and self.cosine_clustering:
            raise HandfulError(
                "distractor_handicap is one of squared distances: leave it out with cosine_clustering or classify=means"
            )
        self.distractor_handicap = distractor_handicap
        self.distractor_reference = nn.Parameter(torch.randn(dim) / dim**0.5)

    def distractor_offset(self, episode: Episode) -> Tensor | None:
        unlabelled = episode.unlabelled.detach()
        if not self.distractor_handicap or unlabelled.shape[-2] == 0:
            return None
        spread = unlabelled.var(-2, correction=0).sum(-1)
        return self.distractor_handicap / episode.shots * spread
