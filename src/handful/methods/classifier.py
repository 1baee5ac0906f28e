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
from ..errors import HandfulError
from .base import Method

MOMENTUM = 0.01  # of a step in the running mean of the embeddings


class CosineHead(nn.Module):
    """Logits of classes: the cosine of a vector with the weights of each, times a learned scale; (n, D) -> (n, ways).

    Gidaris and Komodakis, "Dynamic Few-Shot Visual Learning without Forgetting", CVPR 2018.
    """

    def __init__(self, dim: int, ways: int, scale: float = 10.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ways, dim) / dim**0.5)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, points: Tensor) -> Tensor:
        unit = nn.functional.normalize
        return self.scale * unit(points, dim=-1) @ unit(self.weight, dim=-1).mT


HEADS = {"linear": nn.Linear, "cosine": CosineHead}


class Classifier(Method):
    """Trained to name the training classes by one layer; new classes are told apart by cosines with their means.

    With the linear layer, cosines are around the mean of all training images: embeddings share most of their direction,
    which says nothing. A cosine layer has learned where the origin is.

    Args:
        scale: multiplies the cosines.
        head: the layer that names the training classes: "linear", or "cosine" (`CosineHead`).
    """

    title = "Classifier"
    summary = "a classifier of the training classes; new ones by cosine with their means, labelled images only"
    iterative = False
    in_order = True
    centre: Tensor

    def __init__(self, dim: int, ways: int, *, scale: float = 10.0, head: str = "linear", **options: Any) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        if head not in HEADS:
            raise HandfulError(f"unknown head '{head}': choose one of {', '.join(HEADS)}")
        self.head: nn.Module = HEADS[head](dim, ways)
        self.register_buffer("centre", torch.zeros(dim))

    @property
    def trains_on_unlabelled(self) -> bool:
        return False

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        """Support and query are both images with a class, and no more."""
        support, query = episode.support, episode.query  # (..., ways, shots, D), (..., queries, D)
        labels = torch.arange(episode.ways, device=query.device)[:, None].expand(support.shape[:-1])
        points = torch.cat([support.flatten(0, -2), query.flatten(0, -2)])
        if self.training and isinstance(self.head, nn.Linear):
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

        def cosines(points: Tensor, means: Tensor, scale: float | Tensor) -> Tensor:
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
