"""LST (Li et al., "Learning to Self-Train for Semi-Supervised Few-Shot Classification", NeurIPS 2019), on vectors.

A linear classifier is trained for a few steps in each task: first on the labelled images, then on these and on the
surest unlabelled images with the labels that it has given them, weighted by a network that was learned over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._linalg import unit
from ..episode import Episode
from ..errors import HandfulError
from .adapting import Task, check_at_least
from .base import Method, Range

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
HIDDEN = 64  # units of the network that weights unlabelled images


class SelfTraining(Method):
    """Logits are those of the classifier, ``scale`` (w_n . x + b_n) for unit vectors x.

    It starts at the unit class means, b = 0, and makes ``steps`` + ``fine_steps`` of gradient descent on the support.
    Each refinement then

    1. gives the unlabelled points their best class; of each class the ``most`` surest count;
    2. starts again, with ``steps`` on the cross-entropy of the support plus that of these points, whose logits are
       multiplied by weights of point and class (softmax over the classes);
    3. makes ``fine_steps`` on the support alone.

    The loss is the cross-entropy of the queries after 2 and after 3. The rate of the steps is learned, and so is the
    network that gives the weights.

    Args:
        scale: of the logits.
        most: unlabelled points of a class that count.
        steps: with unlabelled points.
        fine_steps: after them, on the support alone.
        rate: where the learned rate starts.
        scale_and_shift: of the backbone, learn only a scale and a shift of each channel: those of its normalisation
            layers. All other weights stay as they were in the run that it starts from.
    """

    title = "LST"
    summary = "Learning to Self-Train: a classifier trained in each task on labelled and weighted unlabelled images"
    tunables: ClassVar[dict[str, Range]] = {"most": Range(2, 20, "whole"), "iterations": Range(1, 5, "whole")}
    unused = ("cluster_scale",)

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 10.0,
        most: int = 10,
        steps: int = 10,
        fine_steps: int = 5,
        rate: float = 0.1,
        iterations: int = 3,
        scale_and_shift: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, iterations=iterations, **options)
        self.scale_and_shift = scale_and_shift
        check_at_least(1, most=most, steps=steps)
        check_at_least(0, fine_steps=fine_steps)
        if not (rate > 0 and math.isfinite(rate)):
            raise HandfulError(f"rate must be a number above 0, got {rate}")
        self.most, self.steps, self.fine_steps = most, steps, fine_steps
        self.log_rate = nn.Parameter(torch.tensor(math.log(rate)))
        self.of_point, self.of_class = nn.Linear(dim, HIDDEN), nn.Linear(dim, HIDDEN, bias=False)
        self.last = nn.Linear(HIDDEN, 1, bias=False)

    def attach(self, backbone: nn.Module, to_input: Callable[[Tensor], Tensor]) -> None:
        if not self.scale_and_shift:
            return
        norms = [module for module in backbone.modules() if isinstance(module, NORMS)]
        learned = [parameter for norm in norms for parameter in norm.parameters()]
        if not learned:
            raise HandfulError("scale_and_shift learns those of normalisation layers, but this backbone has none")
        backbone.requires_grad_(False)
        for parameter in learned:
            parameter.requires_grad_()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return torch.stack([fine for _, fine in self._stages(episode, iterations)])

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        *_, answers = self._stages(episode, self.train_iterations if self.training else self.iterations)
        labels = episode.query_labels.flatten()
        return torch.stack([nn.functional.cross_entropy(logits.flatten(0, -2), labels) for logits in answers]).sum()

    def _stages(self, episode: Episode, iterations: int) -> list[tuple[Tensor, Tensor]]:
        """Query logits before and after the last steps on the support, after 0, 1, ... refinements."""
        task = Task(*(unit(part) for part in (episode.support, episode.unlabelled, episode.query)))
        points, given = task.points, task.labels
        gram, asked = points @ points.mT, task.query @ points.mT
        labels = given.expand(*points.shape[:-2], *given.shape)
        none = points.new_zeros(*task.others.shape[:-1], episode.ways)
        stages, weights, counted = [], none, none  # counted: labels of the unlabelled points that count, (..., U, N)
        if iterations and task.others.shape[-2]:
            weights = self.weights(task.others, unit(task.support.mean(-2)))
        for _ in range(iterations + 1):
            head = Head(gram, labels, self.scale, self.log_rate.exp())
            for _ in range(self.steps):
                head.step(counted, weights)
            before = head.logits(asked)
            for _ in range(self.fine_steps):
                head.step(none, weights)
            stages.append((before, head.logits(asked)))
            if task.others.shape[-2]:
                counted = surest(head.logits(gram)[..., len(given) :, :].detach(), self.most)
        return stages

    def weights(self, unlabelled: Tensor, means: Tensor) -> Tensor:
        """Weights of unlabelled points and classes: (..., U, D), (..., N, D) -> (..., U, N); rows sum to 1."""
        pairs = torch.relu(self.of_point(unlabelled).unsqueeze(-2) + self.of_class(means).unsqueeze(-3))
        return torch.softmax(self.last(pairs).squeeze(-1), dim=-1)


class Head:
    """A linear classifier of n points by gradient descent, in inner products: its weights are c^T X.

    Args:
        gram: (..., n, n) inner products of the points, labelled ones first.
        labels: (..., N K, N) one-hot labels of these.
        scale, rate: of logits and steps.
    """

    def __init__(self, gram: Tensor, labels: Tensor, scale: float | Tensor, rate: Tensor) -> None:
        self.gram, self.labels, self.scale, self.rate = gram, labels, scale, rate
        rest = gram.shape[-1] - labels.shape[-2]
        means = nn.functional.pad(labels, (0, 0, 0, rest))  # sums of the points of each class, up to a factor
        lengths = (means * (gram @ means)).sum(-2, keepdim=True)
        self.combination = means / lengths.clamp_min(torch.finfo(gram.dtype).eps).sqrt()
        self.bias = torch.zeros_like(means[..., :1, :])

    def logits(self, products: Tensor) -> Tensor:
        """Of points with these inner products with the n points: (..., P, n) -> (..., P, N)."""
        return self.scale * (products @ self.combination + self.bias)

    def step(self, counted: Tensor, weights: Tensor) -> None:
        """One step on the labelled points, and on those with labels ``counted`` (..., U, N), zero for none."""
        logits = self.logits(self.gram)
        known, others = logits[..., : self.labels.shape[-2], :], logits[..., self.labels.shape[-2] :, :]
        slope = (torch.softmax(known, dim=-1) - self.labels) / max(1, known.shape[-2])
        count = counted.sum((-2, -1), keepdim=True).clamp_min(1)
        chosen = counted.sum(-1, keepdim=True)
        soft = weights * (torch.softmax(weights * others, dim=-1) - counted) * chosen / count
        slope = self.scale * torch.cat([slope, soft], dim=-2)
        self.combination = self.combination - self.rate * slope
        self.bias = self.bias - self.rate * slope.sum(-2, keepdim=True)


def surest(logits: Tensor, most: int) -> Tensor:
    """One-hot labels (..., U, N) of the ``most`` surest points of each class; zero for the others."""
    soft = torch.softmax(logits, dim=-1)
    best = nn.functional.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft)
    score = soft * best
    least = score.topk(min(most, score.shape[-2]), dim=-2).values[..., -1:, :]
    return best * (score >= least)
