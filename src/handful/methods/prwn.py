"""Prototypical Random Walk Networks (Ayyad et al., "Semi-Supervised Few-Shot Learning with Prototypical Random Walks").

A walker leaves each class mean for the unlabelled points, makes a few hops among them and returns to a class mean.
Training asks it to return to the mean that it left, which it does where the points form clusters around the means.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..episode import Episode
from ..errors import HandfulError
from .base import Forms
from .pn import mean_logits
from .soft_kmeans import SoftKMeans

HOPS, DECAY, VISIT, SMOOTHING = 3, 0.7, 1.0, 0.1  # of the authors' code


class Walk(NamedTuple):
    """A random walk from the class means over the unlabelled points and back.

    Attributes:
        returns: (hops + 1, ..., N) probability that the walker from class n returns to it, after 0, 1, ... hops.
        visits: (..., U) share of the first steps that go to each unlabelled point.
    """

    returns: Tensor
    visits: Tensor


def random_walk(to_means: Tensor, between: Tensor, hops: int = HOPS, smoothing: float = SMOOTHING) -> Walk:
    """Walk along similarities, which are logits of the steps.

    Args:
        to_means: (..., U, N) similarities of unlabelled points and class means.
        between: (..., U, U) similarities of unlabelled points, up to a constant per row; a point's own is not read.
        hops: most steps among the unlabelled points.
        smoothing: share of the steps between means and points that go anywhere, with equal probability.

    Example:
        >>> similar = torch.tensor([[0.0, -99.0], [0.0, -99.0], [-99.0, 0.0], [-99.0, 0.0]])
        >>> random_walk(similar, 99.0 * (similar @ similar.mT > 0), hops=1, smoothing=0.0).returns
        tensor([[1., 1.],
                [1., 1.]])
    """
    points, ways = to_means.shape[-2:]
    there = (1 - smoothing) * torch.softmax(to_means, dim=-2) + smoothing / points  # (..., U, N): mean n -> point u
    back = (1 - smoothing) * torch.softmax(to_means, dim=-1) + smoothing / ways  # (..., U, N): point u -> mean n
    itself = torch.eye(points, dtype=torch.bool, device=between.device)
    hop = torch.softmax(between.masked_fill(itself, -math.inf), dim=-1)
    place, returns = there.mT, []  # (..., N, U): where the walkers are
    for number in range(hops + 1 if points > 1 else 1):  # a single point has nowhere to hop to
        place = place @ hop if number else place
        returns.append((place * back.mT).sum(-1))
    return Walk(torch.stack(returns), there.mean(-1))


def walk_loss(
    to_means: Tensor,
    between: Tensor,
    hops: int = HOPS,
    decay: float = DECAY,
    visit: float = VISIT,
    smoothing: float = SMOOTHING,
) -> Tensor:
    """The walker loss plus ``visit`` times the visit loss, a scalar: the mean over all episodes.

    The walker loss is the mean of -log p(return) over the classes, summed over the numbers of hops with the weights
    ``decay`` ** hops. The visit loss is the cross-entropy of even visits to all unlabelled points with those that are
    paid. The other arguments are those of :func:`random_walk`; 0 without unlabelled points.
    """
    if to_means.shape[-2] == 0:
        return to_means.new_zeros(())
    walk = random_walk(to_means, between, hops, smoothing)
    lost = -walk.returns.log().flatten(1).mean(1)  # (hops + 1,)
    weights = decay ** torch.arange(len(lost), dtype=lost.dtype, device=lost.device)
    return weights @ lost - visit * walk.visits.log().mean()


def check_share(name: str, value: float, most: float = math.inf) -> None:
    """Raise a HandfulError unless a weight is a number from 0 to ``most``."""
    if not (0 <= value <= most and math.isfinite(value)):
        raise HandfulError(
            f"{name} must be a number from 0 {'up' if most == math.inf else f'to {most:g}'}, got {value}"
        )


class RandomWalks(SoftKMeans):
    """PN trained with random walks over the unlabelled points; in evaluation it is Soft k-Means.

    The loss is the cross-entropy of the queries plus ``walk`` times that of the walk (:func:`walk_loss`), whose
    similarities are those of the soft labels: negative squared distances times the scale.

    Args:
        walk: weight of the walk in the loss.
        hops: most hops of a walker among the unlabelled points.
        decay: weight of the return after one more hop, relative to the one before.
        visit: weight of the visit loss, relative to the walker loss.
        smoothing: share of the steps between means and points that go anywhere.
    """

    title = "PRWN"
    summary = "Prototypical Random Walks: walks over the unlabelled images must return; evaluated as Soft k-Means"
    forms: ClassVar[Forms] = {
        "published": {
            **SoftKMeans.forms["published"],
            "walk": 0.5, "hops": HOPS, "decay": DECAY, "visit": VISIT, "smoothing": SMOOTHING,
        }
    }  # fmt: skip

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        walk: float = 0.5,
        hops: int = HOPS,
        decay: float = DECAY,
        visit: float = VISIT,
        smoothing: float = SMOOTHING,
        train_iterations: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, **options)
        if hops < 0:
            raise HandfulError(f"hops must be at least 0, got {hops}")
        for name, value in {"walk": walk, "decay": decay, "visit": visit}.items():
            check_share(name, value)
        check_share("smoothing", smoothing, 1.0)
        self.walk, self.hops, self.decay, self.visit, self.smoothing = walk, hops, decay, visit, smoothing

    @property
    def trains_on_unlabelled(self) -> bool:
        return self.walk > 0 or super().trains_on_unlabelled

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        classes = super().loss(episode, turn)
        unlabelled = episode.unlabelled
        if not self.walk or unlabelled.shape[-2] == 0:
            return classes
        to_means = -self.soft_scale * self.distances(unlabelled, episode.centroids)
        between = self.soft_scale * mean_logits(unlabelled, unlabelled, cosine=self.cosine)
        return classes + self.walk * walk_loss(to_means, between, self.hops, self.decay, self.visit, self.smoothing)
