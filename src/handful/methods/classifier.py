"""A plain classifier of the training classes, and its embeddings for new ones: what meta-learning may start from.

Trained as the "Baseline" of Chen et al., "A Closer Look at Few-Shot Classification", ICLR 2019; new classes are told
apart as in Wang et al., "SimpleShot", 2019. A step of it sees every training class, so that it learns far more of an
image than an episode does, and its backbone is a good start for other methods.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import functional as F
from ..episode import Episode
from .base import Method

MOMENTUM = 0.01  # of a step in the running mean of the embeddings


class Classifier(Method):
    """Trained to name the training classes by a linear layer; new classes are told apart by cosines with their means.

    Cosines are around the mean of all training images: embeddings share most of their direction, which says nothing.

    Args:
        scale: multiplies the cosines.
    """

    title = "Classifier"
    summary = "a linear classifier of the training classes; new ones by cosine with their means, labelled images only"
    iterative = False
    in_order = True
    centre: Tensor

    def __init__(self, dim: int, ways: int, *, scale: float = 10.0, **options: Any) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        self.head = nn.Linear(dim, ways)
        self.register_buffer("centre", torch.zeros(dim))

    @property
    def trains_on_unlabelled(self) -> bool:
        return False

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        """Support and query are both images with a class, and no more."""
        support, query = episode.support, episode.query  # (..., ways, shots, D), (..., queries, D)
        labels = torch.arange(episode.ways, device=query.device)[:, None].expand(support.shape[:-1])
        points = torch.cat([support.flatten(0, -2), query.flatten(0, -2)])
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(points.mean(0), MOMENTUM if self.centre.any() else 1.0)
        return nn.functional.cross_entropy(
            self.head(points), torch.cat([labels.flatten(), episode.query_labels.flatten()])
        )

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        support, query, unlabelled = (
            nn.functional.normalize(part - self.centre, dim=-1)
            for part in (episode.support, episode.query, episode.unlabelled)
        )

        def cosines(points: Tensor, means: Tensor, scale: float) -> Tensor:
            return scale * points @ nn.functional.normalize(means, dim=-1).mT

        def label_softly(means: Tensor) -> Tensor:
            return torch.softmax(cosines(unlabelled, means, self.soft_scale), dim=-1)

        iterations = iterations if self.iterative else 0
        steps = F.refinements(support.mean(-2), episode.shots, unlabelled, iterations, label_softly)
        return torch.stack([cosines(query, means, self.scale) for means in steps])


class ClassifierSemi(Classifier):
    """Trained as the classifier; the means of new classes are refined by soft k-means over cosines."""

    title = "Classifier + Semi-Sup. Inference"
    summary = "trained as classifier, evaluated by soft k-means over cosines"
    iterative = True
    unused = ("train_iterations",)
