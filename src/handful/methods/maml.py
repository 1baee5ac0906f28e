"""MAML (Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning", ICML 2017): the backbone itself adapts to each task.

The example of a method that sees images, not vectors (`Method.adapts_backbone`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._linalg import unit
from ..episode import Episode
from ..errors import HandfulError
from .adapting import check_at_least
from .base import Method, Range

Weights = dict[str, Tensor]


class Maml(Method):
    """Backbone and classifier make a few steps of gradient descent on the support of each task, then classify.

    The classifier has the logits scale (w_n . x + b_n) for unit vectors x, and starts at the unit class means, with
    b = 0. So nothing but the backbone is learned, and the answer does not depend on the order of the classes. Training
    minimises the cross-entropy of the queries after the steps, through all of them.

    Until a backbone is attached, items of an episode are vectors, and the classifier alone adapts.

    Args:
        scale: of the logits.
        steps: of gradient descent on a task in training; ``test_steps`` those in evaluation.
        rate: of these steps.
        first_order: whether the steps' gradients are constants in the backward pass, which saves time and memory.
    """

    title = "MAML"
    summary = "backbone and classifier adapt to each task by gradient descent; labelled images only"
    tunables: ClassVar[dict[str, Range]] = {"rate": Range(0.1, 10.0), "test_steps": Range(1, 20, "whole")}
    iterative = False
    training_free = True
    adapts_backbone = True

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 10.0,
        steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.01,
        first_order: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(0, steps=steps, test_steps=test_steps)
        if not rate > 0:
            raise HandfulError(f"rate must be a number above 0, got {rate}")
        self.steps, self.test_steps, self.rate, self.first_order = steps, test_steps, rate, first_order
        if first_order:
            self.title = "MAML (first order)"
        # In a tuple, so that the backbone is not a part of this module: its weights are those of the model already.
        self._attached: tuple[nn.Module, Callable[[Tensor], Tensor]] | None = None

    def attach(self, backbone: nn.Module, to_input: Callable[[Tensor], Tensor]) -> None:
        self._attached = backbone, to_input

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        learning = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        # Evaluation is without gradients, but adaptation is by gradients: these are of this task alone.
        with torch.inference_mode(False), torch.enable_grad():
            batch = episode.query_labels.shape[:-1]
            parts = (part if learning else part.clone() for part in (episode.support, episode.query))
            flat = [part.reshape(-1, *part.shape[len(batch) :]) for part in parts]
            logits = torch.stack([self._adapted(*task) for task in zip(*flat, strict=True)])
            logits = logits.reshape(*batch, *logits.shape[1:])
        return (logits if learning else logits.detach()).unsqueeze(0)

    def _adapted(self, support: Tensor, query: Tensor) -> Tensor:
        """Query logits of one task: (N, K, *item), (Q, *item) -> (Q, N)."""
        ways, shots = support.shape[:2]
        labels = torch.arange(ways, device=support.device).repeat_interleave(shots)
        embed, start = self._embedder()
        support = support.flatten(0, 1)
        means = unit(unit(embed(start, support)).reshape(ways, shots, -1).mean(1))
        # The steps are those of a classifier that starts anywhere; the loss also moves where it starts.
        weights = {**start, "w": means.detach(), "b": torch.zeros_like(means[:, 0])}

        def logits(items: Tensor) -> Tensor:
            return self.scale * (unit(embed(weights, items)) @ weights["w"].mT + weights["b"])

        exact = self.training and not self.first_order
        for _ in range(self.steps if self.training else self.test_steps):
            inputs = [value if value.requires_grad else value.requires_grad_() for value in weights.values()]
            loss = nn.functional.cross_entropy(logits(support), labels)
            slopes = torch.autograd.grad(loss, inputs, create_graph=exact)
            moved = (value - self.rate * slope for value, slope in zip(inputs, slopes, strict=True))
            weights = dict(zip(weights, moved, strict=True))
        weights["w"] = weights["w"] + means - means.detach()
        return logits(query)

    def _embedder(self) -> tuple[Callable[[Weights, Tensor], Tensor], Weights]:
        """A function of weights and items that gives their vectors, and the weights that it starts from."""
        if self._attached is None:
            return (lambda weights, items: items), {}
        backbone, to_input = self._attached
        if not self.training:  # several threads may evaluate, and a call with other weights swaps them in the module
            backbone = copy.deepcopy(backbone).requires_grad_()
        start: Weights = dict(backbone.named_parameters())

        def embed(weights: Weights, items: Tensor) -> Tensor:
            own = {name: weights[name] for name in start}
            found: Tensor = torch.func.functional_call(backbone, own, (to_input(items),))
            return found

        return embed, start
