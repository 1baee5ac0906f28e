"""PT-MAP (Hu, Gripon and Pateux, "Leveraging the Feature Distribution in Transfer-Based Few-Shot Learning", 2021).

Vectors are made more Gaussian by a power transform, then the set is transported to the class means, which move towards
the means of what they get. The transport gives every class the same number of points.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import HandfulError
from .adapting import AdaptingMethod, Task, centred, check_at_least
from .base import Range

LEAP = 5.0  # most nats that a step of Newton's moves a class


class PowerTransport(AdaptingMethod):
    """Logits of a query are -scale d_n + log v_n: squared distances to the means, factors of the last transport.

    The plan of a transport is P_in = u_i exp(-scale d_in) v_n, with u so that rows sum to 1 and v so that columns have
    the same sum. A query has the row that it would have with the v of the set. Transductive, that is its row of P.

    Args:
        scale: sharpness of the transport; multiplies squared distances.
        power: of the magnitude of each component, before all else.
        steps: how often set and means are matched.
        rate: how far the means move to those of their points in a step.
        even_classes: whether the classes are taken to be of the same size in the set; else every point chooses for
            itself, and v is 1.
    """

    title = "PT-MAP (even classes)"
    summary = "power transform, then transport of the unlabelled images to classes that are taken to be even"
    tunables: ClassVar[dict[str, Range]] = {
        "scale": Range(0.2, 5.0),
        "power": Range(0.3, 1.0, "number"),
        "rate": Range(0.1, 1.0, "number"),
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 10.0,
        power: float = 0.5,
        steps: int = 20,
        rate: float = 0.2,
        even_classes: bool = True,
        **options: Any,
    ) -> None:
        if not even_classes:
            self.title = "PT-MAP (classes of any size)"
        super().__init__(dim, ways, scale=scale, **options)
        check_at_least(0, steps=steps)
        for name, value in {"power": power, "rate": rate}.items():
            if not 0 < value <= 1:
                raise HandfulError(f"{name} must be a number above 0 and at most 1, got {value}")
        self.power, self.steps, self.rate, self.even_classes = power, steps, rate, even_classes

    def prepare(self, task: Task) -> Task:
        return centred(Task(*(power_transform(part, self.power) for part in task)))

    def classify(self, task: Task) -> Tensor:
        points, given = task.points, task.labels
        labelled, count = len(given), task.others.shape[-2]
        # The means are combinations w^T X of the points: all distances follow from inner products of points.
        gram = points @ points.mT  # (..., n, n)
        given = given.expand(*points.shape[:-2], *given.shape)
        means = torch.nn.functional.pad(given / task.support.shape[-2], (0, 0, 0, count))  # (..., n, N)
        log_v = torch.zeros_like(means[..., 0, :])  # (..., N)
        for step in range(self.steps + 1 if count else 0):
            products = gram @ means
            distances = _offsets(means, products).unsqueeze(-2) - 2 * products[..., labelled:, :]  # up to |x|^2
            logits = -(self.scale if step == self.steps else self.soft_scale) * distances
            log_v = self._factors(logits)
            if step == self.steps:
                break
            plan = torch.softmax(logits + log_v.unsqueeze(-2), dim=-1)
            plan = torch.cat([given, plan], dim=-2)
            means = means + self.rate * (plan / plan.sum(-2, keepdim=True) - means)
        distances = _offsets(means, gram @ means).unsqueeze(-2) - 2 * (task.query @ points.mT) @ means
        return -self.scale * distances + log_v.unsqueeze(-2)

    def _factors(self, logits: Tensor) -> Tensor:
        """log v (..., N) of the transport of points with these logits (..., S, N)."""
        if not self.even_classes:
            return torch.zeros_like(logits[..., 0, :])
        return transport(logits)


def _offsets(means: Tensor, products: Tensor) -> Tensor:
    """Squared lengths of the means w^T X (..., N), from w (..., n, N) and G w (..., n, N)."""
    return (means * products).sum(-2)


def power_transform(vectors: Tensor, power: float) -> Tensor:
    """Each component to a power of its magnitude, with its sign; the gradient is finite at 0."""
    size = vectors.abs().clamp_min(torch.finfo(vectors.dtype).eps)
    return vectors * size ** (power - 1)


def transport(logits: Tensor, shares: Tensor | None = None, weights: Tensor | None = None, rounds: int = 20) -> Tensor:
    """Factors of the transport of points to classes: log v (..., N), so that softmax(logits + log v) has these shares.

    A round is one of Sinkhorn's, which is safe but slow where most points are certain of their class, and a step of
    Newton's on the same concave problem in N numbers, which is taken where it helps.

    Args:
        logits: (..., S, N).
        shares: (..., N) or (N,), the wanted mean over the points, which sums to 1; None for even ones.
        weights: (..., S) of the points in that mean; None for even ones.
        rounds: at most; fewer if the shares are right.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [1.0, 0.0]])
        >>> torch.softmax(logits + transport(logits), -1).mean(0)
        tensor([0.5000, 0.5000])
    """
    ways, tiny = logits.shape[-1], torch.finfo(logits.dtype).tiny
    wanted = torch.full_like(logits[..., 0, :], 1 / ways) if shares is None else shares.expand_as(logits[..., 0, :])
    factors = torch.zeros_like(wanted)
    weights = torch.ones_like(logits[..., 0]) if weights is None else weights
    part = (weights / weights.sum(-1, keepdim=True).clamp_min(tiny)).unsqueeze(-1)  # (..., S, 1)

    def shares_of(factors: Tensor) -> tuple[Tensor, Tensor]:
        soft = torch.softmax(logits + factors.unsqueeze(-2), dim=-1)
        return soft, (part * soft).sum(-2)

    for _ in range(rounds):
        _, found = shares_of(factors)
        factors = factors + (wanted / found.clamp_min(tiny)).log()
        soft, found = shares_of(factors)
        missing = wanted - found
        if missing.abs().max() <= 32 * torch.finfo(logits.dtype).eps:
            break
        # All factors may grow alike: the 1 in every entry takes that direction out of the system.
        system = torch.diag_embed(found + tiny) - (part * soft).mT @ soft + 1
        step = torch.linalg.solve_ex(system, missing.unsqueeze(-1))[0].squeeze(-1).nan_to_num().clamp(-LEAP, LEAP)
        better = (wanted - shares_of(factors + step)[1]).abs().sum(-1) < missing.abs().sum(-1)
        factors = torch.where(better.unsqueeze(-1), factors + step, factors)
    return factors
