"""Straightforward PyTorch loops, as the formulas are written and as public few-shot code does it.

The benchmarks compare our speed with theirs, and check that both give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..episode import Episode


def null_space(errors: Tensor) -> Tensor:
    """An orthonormal basis of M spelled out, by a full SVD: (N, D) -> (D, D - N)."""
    rows: Tensor = torch.linalg.svd(errors, full_matrices=True)[2]
    return rows[len(errors) :].mT


def errors(means: Tensor, references: Tensor) -> Tensor:
    """Unit modified references minus unit means: (N, D), (N, D) -> (N, D)."""
    ways = len(references)
    modified = references - (references.sum(0) - references) / (ways - 1)
    return nn.functional.normalize(modified) - nn.functional.normalize(means)


def sqdist(points: Tensor, targets: Tensor, space: Tensor) -> Tensor:
    """Squared distances between the projections of all points and targets: (P, D), (T, D), (D, M) -> (P, T)."""
    return torch.cdist(points @ space, targets @ space).square()


def tac(episode: Episode, references: Tensor, iterations: int) -> Tensor:
    """TAC of a single episode, with M spelled out: query logits (Q, N)."""
    support = means = episode.support.mean(1)
    space = null_space(errors(means, references))
    for _ in range(iterations):
        soft = torch.softmax(-sqdist(episode.unlabelled, means, space), 1)  # (U, N)
        total = episode.shots * support + soft.T @ episode.unlabelled
        means = total / (episode.shots + soft.sum(0))[:, None]
        space = null_space(errors(means, references))
    return -sqdist(episode.query, references, space)


def prototypes(episode: Episode) -> Tensor:
    """Prototypical Networks on a single episode, as public few-shot code does it: query logits (Q, N)."""
    labels = torch.arange(episode.ways).repeat_interleave(episode.shots)
    support = episode.support.flatten(0, 1)
    means = torch.cat([support[torch.nonzero(labels == label)].mean(0) for label in range(episode.ways)])
    return -torch.cdist(episode.query, means)


def conv4(channels: int, width: int = 64) -> nn.Sequential:
    """CONV4 in the textbook's order, in PyTorch's default memory layout."""
    blocks = []
    for index in range(4):
        convolution = nn.Conv2d(channels if index == 0 else width, width, 3, padding=1, bias=False)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)))
    return nn.Sequential(*blocks, nn.Flatten())


def to_input(images: Tensor) -> Tensor:
    """Stored images (n, h, w, c) uint8 -> (n, c, h, w) in [-1, 1], channel after channel."""
    return (images.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 127.5 - 1).contiguous()
