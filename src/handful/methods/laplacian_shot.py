"""LaplacianShot (Ziko, Dolz, Granger and Ben Ayed, ICML 2020): the nearest class mean, with neighbours that agree."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import functional as F
from ..errors import HandfulError
from .adapting import AdaptingMethod, Task, check_at_least, nearest
from .base import Range
from .bd_cspn import MOST, SCALE, rectified, shifted


class LaplacianShot(AdaptingMethod):
    """Every point of the set weighs its distances to the class means against the soft labels of its nearest points.

    With d_in the squared distance of point i and class mean n, the soft labels y_i = softmax over n of
    (-scale d_in / 2 + weight * sum over the neighbours j of y_jn) are computed again and again from those before;
    labelled points keep their labels. Logits of a query are that sum, with its neighbours among labelled points and
    set; transductive, the queries are points of the set.

    Args:
        weight: of the neighbours.
        neighbours: of each point, by distance, without itself.
        steps: how often the soft labels are computed.
        rectify: take the class means of BD-CSPN, as published; else those of the labelled points.
        rectify_scale: of the weights of points in these means; EasyFSL has 1.
        most: points of the set that count for such a mean.
        labelled_neighbours: whether labelled points are in the graph; False as published.
    """

    title = "LaplacianShot"
    summary = "nearest class mean, smoothed over a graph of nearest neighbours"
    tunables: ClassVar[dict[str, Range]] = {
        "scale": Range(0.1, 10.0),
        "weight": Range(0.1, 10.0),
        "neighbours": Range(1, 10, "whole"),
        "rectify_scale": Range(0.03, 3.0),
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 10.0,
        weight: float = 0.7,
        neighbours: int = 3,
        steps: int = 20,
        rectify: bool = True,
        rectify_scale: float = SCALE,
        most: int = MOST,
        labelled_neighbours: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(1, neighbours=neighbours, steps=steps, most=most)
        for name, value in {"weight": weight, "rectify_scale": rectify_scale}.items():
            if not value >= 0:
                raise HandfulError(f"{name} must be a number from 0 up, got {value}")
        self.rectify_scale, self.most, self.labelled_neighbours = rectify_scale, most, labelled_neighbours
        self.weight, self.neighbours, self.steps, self.rectify = weight, neighbours, steps, rectify

    def classify(self, task: Task) -> Tensor:
        means = rectified(shifted(task), self.rectify_scale, self.most) if self.rectify else task.support.mean(-2)
        alone = 0.5 * F.projected_logits(task.query, means, None)
        if task.others.shape[-2] == 0:
            return self.scale * alone
        points, given = task.points, task.labels
        if not self.labelled_neighbours:
            points, given = task.others, given[:0]
        gram = points @ points.mT
        graph = nearest(gram, self.neighbours, itself=True)  # (..., n, n)
        unary = self.soft_scale * 0.5 * F.projected_logits(points, means, None)
        given = given.expand(*points.shape[:-2], *given.shape)
        soft = torch.softmax(unary, dim=-1)
        for _ in range(self.steps):
            soft = torch.cat([given, soft[..., given.shape[-2] :, :]], dim=-2)
            agreement = self.weight * graph @ soft
            soft = torch.softmax(unary + agreement, dim=-1)
        if self.transductive:
            last = -task.query.shape[-2]
            return self.scale * alone + agreement[..., last:, :]
        known = torch.cat([given, soft[..., given.shape[-2] :, :]], dim=-2)
        return self.scale * alone + self.weight * nearest(task.query @ points.mT, self.neighbours) @ known
