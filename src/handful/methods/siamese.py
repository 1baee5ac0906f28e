"""Siamese Networks (Koch, Zemel and Salakhutdinov, 2015): a learned distance tells if two images are of one class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..episode import Episode
from .base import Method

QUERIES = 8  # whose differences to all labelled images are computed together


class SiameseNetwork(Method):
    """The score of two images is a sum of learned weights times the differences of their components, plus a bias.

    Training asks of every pair of query and labelled image whether they are of one class; the pairs that are count as
    much in all as those that are not. A query is of the class of the labelled image with the largest score.

    Args:
        scale: multiplies the scores.
    """

    title = "Siamese Networks"
    summary = "a learned distance of two images, trained on pairs, labelled images only"
    iterative = False

    def __init__(self, dim: int, ways: int, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        self.weight = nn.Parameter(torch.full((dim,), -1.0 / dim))
        self.bias = nn.Parameter(torch.zeros(()))

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.pairs(episode).amax(-1).unsqueeze(0)

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        scores = self.pairs(episode)
        same = nn.functional.one_hot(episode.query_labels, episode.ways).unsqueeze(-1).expand(scores.shape)
        weight = torch.where(same > 0, 0.5, 0.5 / max(1, episode.ways - 1)).to(scores)
        lost = binary_cross_entropy_with_logits(scores, same.to(scores), weight, reduction="sum")
        return lost / (scores.numel() / episode.ways)

    def pairs(self, episode: Episode) -> Tensor:
        """Scores of queries and labelled images: (..., Q, N, K)."""
        support = episode.support.flatten(-3, -2).unsqueeze(-3)  # (..., 1, N K, D)
        # A few queries at a time: all differences at once would not fit the processor's cache.
        rows = [
            (part.unsqueeze(-2) - support).abs() @ self.weight for part in torch.split(episode.query, QUERIES, dim=-2)
        ]
        scores = self.scale * (torch.cat(rows, dim=-2) + self.bias)  # (..., Q, N K)
        return scores.reshape(*scores.shape[:-1], episode.ways, episode.shots)
