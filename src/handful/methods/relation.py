"""Relation Networks (Sung et al., CVPR 2018): a small network learns how to compare, labelled images only."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..episode import Episode
from .base import Forms, Method
from .feature_maps import AlwaysBatchNorm, Shape, convolution, finish, map_shape, pooled_twice, to_maps

WIDTH, HIDDEN = 64, 8  # filters of the relation module and units of its first linear layer, as in the paper


class RelationModule(Method):
    """Concatenates the feature maps of a class and of a query and maps them to a score.

    The module has two blocks (3 x 3 convolution to 64 maps, batch norm, ReLU, 2 x 2 pooling) and two linear layers (8
    and 1). A class is the sum of its support's maps. Logits are the scores; ``scale`` multiplies them.

    Args:
        feature_shape: of the backbone's feature maps; see :func:`handful.methods.feature_maps.map_shape`.
        channels: of the feature maps, instead of the backbone's; 0 for those.
    """

    iterative = False
    reads_maps = True
    prepares = True

    def __init__(
        self, dim: int, ways: int, feature_shape: Shape | None = None, *, channels: int = 0, **options: Any
    ) -> None:
        super().__init__(dim, ways, **options)
        self.map_shape = map_shape(dim, channels, feature_shape)
        self.first = convolution(2 * self.map_shape[0], WIDTH)
        self.blocks = nn.Sequential(finish(WIDTH), convolution(WIDTH, WIDTH), finish(WIDTH), nn.Flatten())
        inputs = WIDTH * pooled_twice(self.map_shape)
        self.head = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.scores(self.features(episode.support, episode.query)).unsqueeze(0)

    def per_image(self, vectors: Tensor) -> Tensor:
        """What the first convolution makes of an image as a class, and as a point."""
        return torch.cat([self._convolved(vectors, part) for part in self.first.weight.chunk(2, dim=1)], dim=-1)

    def compare(self, episode: Episode, iterations: int) -> Tensor:
        classes, points = episode.support.sum(-2).chunk(2, dim=-1)[0], episode.query.chunk(2, dim=-1)[1]
        return self.scores(self._of_pairs(classes, points)).unsqueeze(0)

    def features(self, support: Tensor, points: Tensor) -> Tensor:
        """Output of the two blocks for each pair of point and class: (..., N, K, D), (..., P, D) -> (..., P, N, F)."""
        # A convolution is linear: that of two maps upon each other is the sum of two, each computed once per image and
        # not once per pair.
        of_class, of_point = self.first.weight.chunk(2, dim=1)
        return self._of_pairs(self._convolved(support.sum(-2), of_class), self._convolved(points, of_point))

    def _convolved(self, vectors: Tensor, weight: Tensor) -> Tensor:
        """The first convolution of maps, its channels last: (..., D) -> (..., height * width * 64)."""
        maps = nn.functional.conv2d(to_maps(vectors, self.map_shape), weight, padding=1)
        return maps.permute(0, 2, 3, 1).reshape(*vectors.shape[:-1], -1)

    def _of_pairs(self, classes: Tensor, points: Tensor) -> Tensor:
        """The rest of the two blocks: (..., N, E), (..., P, E) -> (..., P, N, F)."""
        shape = (*self.map_shape[1:], WIDTH)
        ours = classes.reshape(-1, 1, *classes.shape[-2:-1], *shape)  # (episodes, 1, N, height, width, 64)
        theirs = points.reshape(-1, *points.shape[-2:-1], 1, *shape)  # (episodes, P, 1, height, width, 64)
        # In training, batch norm is over all pairs. In evaluation its statistics are fixed, so each pair is for itself;
        # then the pairs of one episode at a time fit the processor's cache.
        parts = zip(*(maps.chunk(1 if self.training else len(maps)) for maps in (ours, theirs)), strict=True)
        found = [self.blocks((left + right).flatten(0, 2).permute(0, 3, 1, 2)) for left, right in parts]
        return torch.cat(found).reshape(*points.shape[:-1], classes.shape[-2], -1)

    def scores(self, features: Tensor) -> Tensor:
        """Relation scores before the sigmoid: (..., P, N, F) -> (..., P, N)."""
        scores: Tensor = self.head(features)
        return self.scale * scores.squeeze(-1)


class RelationNetwork(RelationModule):
    """Scores trained by cross-entropy.

    Args:
        squared_error: train the sigmoid of the score to be 1 for the query's class and 0 for the others, by squared
            error, as the original does. With 20 ways, 19 of 20 targets are 0, and training starts slowly.
        batch_statistics: normalise the pairs of an episode by their own statistics in evaluation, as the original's
            code does. A query then sees the others, which is another protocol, so the title says it.
    """

    title = "RN"
    summary = "Relation Network: a learned comparison of feature maps, labelled images only"
    forms: ClassVar[Forms] = {"published": {"scale": 1.0, "squared_error": True, "batch_statistics": True}}

    def __init__(
        self,
        dim: int,
        ways: int,
        feature_shape: Shape | None = None,
        *,
        squared_error: bool = False,
        batch_statistics: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, feature_shape, **options)
        self.squared_error = squared_error
        if batch_statistics:
            self.title = "RN (transductive)"
            self.blocks[0], self.blocks[2] = finish(WIDTH, AlwaysBatchNorm), finish(WIDTH, AlwaysBatchNorm)
        if not squared_error:  # a shift of all scores cancels in the softmax
            self.head[-1].register_parameter("bias", None)

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        """Cross-entropy of the scores, or squared error of the relations in [0, 1] against 1 and 0."""
        if not self.squared_error:
            return super().loss(episode, turn)
        relations = torch.sigmoid(self(episode))
        target = nn.functional.one_hot(episode.query_labels, episode.ways)
        return nn.functional.mse_loss(relations, target.to(relations))
