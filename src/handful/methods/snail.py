"""SNAIL (Mishra, Rohaninejad, Chen and Abbeel, "A Simple Neural Attentive Meta-Learner", ICLR 2018), on vectors.

The labelled images of a task and then a query are a sequence, which a network of causal convolutions and causal
attention reads; its output at the query is the answer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..episode import Episode
from ..errors import HandfulError
from .adapting import check_at_least
from .base import Method

EMBEDDED = 64  # components that a vector is mapped to first


class Sequences(NamedTuple):
    """Sequences that differ only in their last entry: the others (..., n, C), and all last ones (..., Q, C).

    All layers are causal: what comes before the query is the same for all queries, and computed once.
    """

    others: Tensor
    last: Tensor

    def joined(self, new: Sequences) -> Sequences:
        return Sequences(*(torch.cat([old, more], dim=-1) for old, more in zip(self, new, strict=True)))


class Convolution(nn.Module):
    """A gated causal convolution of width 2 with a dilation; its outputs join its inputs."""

    def __init__(self, channels: int, filters: int, dilation: int) -> None:
        super().__init__()
        self.dilation, self.filters = dilation, filters
        self.kernel = nn.Linear(2 * channels, 2 * filters)  # of the entry `dilation` before, and of the entry itself

    def forward(self, found: Sequences) -> Sequences:
        others, last = found
        before = nn.functional.pad(others, (0, 0, self.dilation, 0))  # zeros stand before the sequence
        past = before[..., others.shape[-2], :].unsqueeze(-2).expand_as(last)
        pairs = ((before[..., : others.shape[-2], :], others), (past, last))
        return found.joined(Sequences(*(self._gated(torch.cat(pair, dim=-1)) for pair in pairs)))

    def _gated(self, pairs: Tensor) -> Tensor:
        signal, gate = self.kernel(pairs).chunk(2, dim=-1)
        return torch.tanh(signal) * torch.sigmoid(gate)


class Attention(nn.Module):
    """Each entry reads itself and what is before it, by keys; what it reads joins its inputs."""

    def __init__(self, channels: int, keys: int, values: int) -> None:
        super().__init__()
        self.asks, self.keys = nn.Linear(channels, keys), nn.Linear(channels, keys)
        self.values = nn.Linear(channels, values)

    def forward(self, found: Sequences) -> Sequences:
        (others, last), root = found, math.sqrt(self.keys.out_features)
        keys, values = self.keys(others), self.values(others)
        future = torch.ones(others.shape[-2], others.shape[-2], dtype=torch.bool, device=others.device).triu(1)
        match = (self.asks(others) @ keys.mT / root).masked_fill(future, -math.inf)
        asks = self.asks(last)
        own = (asks * self.keys(last)).sum(-1, keepdim=True) / root
        weights = torch.softmax(torch.cat([asks @ keys.mT / root, own], dim=-1), dim=-1)
        read = weights[..., :-1] @ values + weights[..., -1:] * self.values(last)
        return found.joined(Sequences(torch.softmax(match, dim=-1) @ values, read))


class Snail(Method):
    """Attention, convolutions, attention, convolutions, attention, and a linear layer on the entry of the query.

    An entry is a vector, mapped to 64 components, and the one-hot place of its class; that of the query is zero. The
    network would answer differently for another order of images or classes. So that it does not, both are sorted, by
    the inner products of images and class means with a fixed random direction.

    Args:
        filters: of each convolution.
        length: of the sequences that the convolutions can see, which decides how many there are; the dilations are 1,
            2, 4 ... up to half of it.
    """

    title = "SNAIL"
    summary = "a causal network reads the labelled images, then the query; labelled images only"
    iterative = False
    direction: Tensor

    def __init__(self, dim: int, ways: int, *, filters: int = 64, length: int = 32, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        check_at_least(1, filters=filters)
        check_at_least(2, length=length)
        self.register_buffer("direction", nn.functional.normalize(torch.randn(dim), dim=0))
        self.embed = nn.Linear(dim, EMBEDDED)
        channels, layers = EMBEDDED + ways, list[nn.Module]()
        for keys, values in ((64, 32), (256, 128)):
            layers.append(Attention(channels, keys, values))
            channels += values
            for power in range(math.ceil(math.log2(length))):
                layers.append(Convolution(channels, filters, 2**power))
                channels += filters
        self.layers = nn.Sequential(*layers, Attention(channels, 512, 256))
        self.head = nn.Linear(channels + 256, ways)

    def check_ways(self, ways: int) -> None:
        if ways > self.ways:
            raise HandfulError(f"{ways} ways need as many outputs, but this model has {self.ways}: train it with more")

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        self.check_ways(episode.ways)
        sequences, places = self.sequences(episode)
        found: Tensor = self.head(self.layers(sequences).last)  # (..., Q, ways), by place
        logits = torch.take_along_dim(found, places.unsqueeze(-2), dim=-1)
        return (self.scale * logits).unsqueeze(0)

    def sequences(self, episode: Episode) -> tuple[Sequences, Tensor]:
        """The entries, sorted, and the place of each class (..., N)."""
        support = episode.support.flatten(-3, -2)
        with torch.no_grad():
            places = (episode.centroids @ self.direction).argsort(-1).argsort(-1)  # (..., N)
            order = (support @ self.direction).argsort(-1).unsqueeze(-1)  # (..., N K, 1)
        marks = nn.functional.one_hot(places, self.ways).to(support).repeat_interleave(episode.shots, dim=-2)
        others = torch.cat([self.embed(support), marks], dim=-1)
        others = torch.take_along_dim(others, order, dim=-2)
        return Sequences(others, nn.functional.pad(self.embed(episode.query), (0, self.ways))), places
