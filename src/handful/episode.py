"""Episode: a batch of few-shot tasks, which the sampler gives and a method takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Episode:
    """A batch of few-shot tasks of equal size.

    ``*item`` is the shape of one image: empty for a position in the data set (what the sampler gives),
    ``(channels, height, width)`` for pixels, ``(dim,)`` for an embedding (what a method takes).

    Attributes:
        support: (..., ways, shots, *item), labelled.
        query: (..., queries, *item), to be classified.
        unlabelled: (..., unlabelled, *item).
        query_labels: (..., queries) int64 from 0 to ways - 1.
        unlabelled_labels: (..., unlabelled) int64, -1 for a distractor. For reports and figures: no method reads it.
    """

    support: Tensor
    query: Tensor
    unlabelled: Tensor
    query_labels: Tensor
    unlabelled_labels: Tensor

    @property
    def batch_dims(self) -> int:
        return self.query_labels.dim() - 1

    @property
    def ways(self) -> int:
        return self.support.shape[self.batch_dims]

    @property
    def shots(self) -> int:
        return self.support.shape[self.batch_dims + 1]

    @property
    def centroids(self) -> Tensor:
        """(..., ways, *item): the mean of each class's support."""
        return self.support.mean(self.batch_dims + 1)

    def without_unlabelled(self) -> Episode:
        """The same tasks with no unlabelled image."""
        none = (slice(None),) * self.batch_dims + (slice(0),)
        return replace(self, unlabelled=self.unlabelled[none], unlabelled_labels=self.unlabelled_labels[none])

    def map_images(self, function: Callable[[Tensor], Tensor]) -> Episode:
        """Replace every image by ``function`` of it; the function gets and gives one stack of images, (n, *item).

        All images of the batch go through in one call, so a backbone sees them as one batch.

        Example:
            >>> index = torch.arange(2).reshape(2, 1)
            >>> labels = torch.zeros(2, dtype=torch.long)
            >>> episode = Episode(index, index[:, 0], index[:0, 0], labels, labels[:0])
            >>> episode.map_images(lambda i: torch.eye(2)[i]).support.shape
            torch.Size([2, 1, 2])
        """
        parts = (self.support, self.query, self.unlabelled)
        shapes = [part.shape[: self.batch_dims + depth] for part, depth in zip(parts, (2, 1, 1), strict=True)]
        stacks = [part.flatten(0, len(shape) - 1) for part, shape in zip(parts, shapes, strict=True)]
        mapped = torch.split(function(torch.cat(stacks)), [len(stack) for stack in stacks])
        support, query, unlabelled = (
            images.reshape(*shape, *images.shape[1:]) for images, shape in zip(mapped, shapes, strict=True)
        )
        return replace(self, support=support, query=query, unlabelled=unlabelled)

    def __getitem__(self, index: int | slice) -> Episode:
        """Some of the episodes of a batch."""
        return Episode(**{name: value[index] for name, value in vars(self).items()})

    def to(self, device: torch.device) -> Episode:
        return Episode(**{name: value.to(device) for name, value in vars(self).items()})
