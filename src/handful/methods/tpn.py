"""Transductive Propagation Networks (Liu et al., ICLR 2019), in their semi-supervised form: labels flow along a graph.

A small network gives each image a scale sigma_i, and an edge has the weight
W_ij = exp(-|f_i / sigma_i - f_j / sigma_j|^2 / (2 D)). The propagation is :mod:`handful.methods.graph`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..episode import Episode
from ..errors import HandfulError
from .base import Forms, Method, Range, with_and_without
from .feature_maps import Shape, convolution, finish, map_shape, pooled_twice, to_maps
from .graph import gaussian_weights, propagate, propagate_each


class LabelPropagation(Method):
    """Logits are the rows of F. Each query has a graph of its own: the support, the unlabelled points and that query.

    The loss, as the original's, is the cross-entropy over the rows of support and queries in one graph that holds all:
    a graph for each query would make a training step many times as expensive.

    Args:
        alpha: how much of a node's label comes from its neighbours, below 1.
        neighbours: k, the edges that each node keeps, the one to itself included.
        transductive: classify all queries in one graph, where they help each other. That is another protocol, so the
            title says it.
        signed_sigma: divide by the network's output itself, of either sign, as the original does, and not by its
            exponential.
        feature_shape: of the backbone's feature maps; see :func:`handful.methods.feature_maps.map_shape`.
        channels: of the feature maps, instead of the backbone's; 0 for those.
    """

    title = "TPN"
    summary = "Transductive Propagation Network: labels spread over a graph of labelled and unlabelled images"
    tunables: ClassVar[dict[str, Range]] = {"alpha": Range(0.5, 0.99, "number"), "neighbours": Range(5, 40, "whole")}
    unused = ("cluster_scale",)
    reads_maps = True
    prepares = True
    forms: ClassVar[Forms] = {
        "published": {"scale": 1.0, "alpha": 0.99, "neighbours": 20, "transductive": False, "signed_sigma": True}
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        feature_shape: Shape | None = None,
        *,
        alpha: float = 0.99,
        neighbours: int = 20,
        transductive: bool = False,
        signed_sigma: bool = False,
        channels: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, **options)
        if not 0 < alpha < 1:
            raise HandfulError(f"alpha must be a number between 0 and 1, got {alpha}")
        if neighbours < 2:
            raise HandfulError(f"neighbours must be at least 2, got {neighbours}")
        self.alpha, self.neighbours, self.transductive = alpha, neighbours, transductive
        self.signed_sigma = signed_sigma
        if transductive:
            self.title = "TPN (transductive)"
        self.map_shape = map_shape(dim, channels, feature_shape)
        self.log_sigma = nn.Sequential(
            *(convolution(self.map_shape[0], 64), finish(64)),
            *(convolution(64, 1), finish(1)),
            *(nn.Flatten(), nn.Linear(pooled_twice(self.map_shape), 8), nn.ReLU(), nn.Linear(8, 1)),
        )

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.compare(episode.map_images(self.per_image), iterations)

    def compare(self, episode: Episode, iterations: int) -> Tensor:
        return with_and_without(self._logits, episode, iterations)

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        labelled, queries = episode.ways * episode.shots, episode.query.shape[-2]
        scores = self._one_graph(episode.map_images(self.per_image))
        scores = torch.cat([scores[..., :labelled, :], scores[..., -queries:, :]], dim=-2)
        labels = torch.arange(labelled, device=scores.device) // episode.shots
        labels = torch.cat([labels.expand(*episode.query_labels.shape[:-1], labelled), episode.query_labels], dim=-1)
        return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())

    def per_image(self, vectors: Tensor) -> Tensor:
        """f / sigma: (n, D) -> (n, D)."""
        read_off: Tensor = self.log_sigma(to_maps(vectors, self.map_shape))
        if self.signed_sigma:
            return vectors / (read_off + torch.finfo(torch.float64).eps)
        return vectors * torch.exp(-read_off)  # a logarithm keeps sigma above 0

    def _logits(self, scaled: Episode) -> Tensor:
        if self.transductive or self.training:
            return self._one_graph(scaled)[..., -scaled.query.shape[-2] :, :]
        nodes = _shared_nodes(scaled)
        reaches = propagate_each(
            self._weights(nodes, nodes), self._weights(scaled.query, nodes), self.alpha, self.neighbours
        )  # (..., Q, nodes)
        return reaches @ _labels(scaled, nodes)

    def _one_graph(self, scaled: Episode) -> Tensor:
        """F of the support, the unlabelled points and the queries, in this order: (..., nodes, N)."""
        nodes = torch.cat([_shared_nodes(scaled), scaled.query], dim=-2)
        return propagate(self._weights(nodes, nodes), _labels(scaled, nodes), self.alpha, self.neighbours)

    def _weights(self, points: Tensor, nodes: Tensor) -> Tensor:
        return gaussian_weights(points, nodes, self.scale / (2 * self.dim))


def _shared_nodes(episode: Episode) -> Tensor:
    """The nodes that all graphs of an episode share, labelled ones first: (..., N * K + U, D)."""
    return torch.cat([episode.support.flatten(-3, -2), episode.unlabelled], dim=-2)


def _labels(episode: Episode, nodes: Tensor) -> Tensor:
    """Y: a one-hot row for each labelled node, zero for those that follow: (nodes, N)."""
    labels = torch.eye(episode.ways, dtype=nodes.dtype, device=nodes.device).repeat_interleave(episode.shots, dim=0)
    return nn.functional.pad(labels, (0, 0, 0, nodes.shape[-2] - len(labels)))
