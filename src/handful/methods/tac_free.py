"""Task-adaptive clustering without references: the space comes from the soft labels (`TACClassifier`'s, in episodes).

X (n, D) holds the labelled and unlabelled points, as unit vectors, around their mean, P (n, N) their labels, one-hot
or soft. With C = diag of the column sums of P and R of its row sums, 1 unless points may be of no class, the class
means are the rows of C^-1 P^T X, and the covariance within the classes is

    S = X^T A X / n,        A = R - P C^-1 P^T.

S is shrunk to V = (1 - s) S + s v I, with v its mean eigenvalue (there are at most n that are not 0), and the space is
that in which V is the identity. V is D x D and never formed: with G = X X^T, B = (1 - s) / n A and l = s v,

    V^-1 X^T = X^T (l I + B G)^-1,        z . V^-1 z = (z . z - (X z) . B (l I + G B)^-1 (X z)) / l,

so an n x n system gives all inner products with class means, which are combinations of the rows of X.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .._linalg import solve, unit
from ..episode import Episode
from ..errors import HandfulError
from .base import REFINED, Method, Range
from .pn import mean_logits


class Points(NamedTuple):
    """Inner products of points z (..., P, D) with the rows of X and with themselves: (..., P, n), (..., P)."""

    products: Tensor
    squares: Tensor


class TacFree(Method):
    """Cosines with the class means in a space that is whitened by the covariance within the softly labelled classes.

    Without unlabelled points, logits are the cosines with the class means. The first soft labels are cosines around the
    mean of all points, in the space of the vectors. Each refinement takes the class means of all points by their
    labels, as Soft k-Means does, and rebuilds the space, in which cosines are around the mean of the class means.

    Args:
        scale: multiplies the cosines.
        shrinkage: s, how far the covariance within the classes is drawn towards a multiple of the identity; at 1 the
            space is that of the vectors.
        centre: whether cosines are around a mean: that of all points at first, that of the class means in the space.
            Better for vectors that share much of their direction, worse for those of a whitened run.
        distractor_cosine: the cosine that every unlabelled point has with a cluster of distractors, which takes what is
            far from all classes out of their means. -1 for no such cluster.
        learn_scale: whether the scale is learned; it starts at ``scale``.
        grad_through_soft_labels: whether the soft labels are differentiated through.
    """

    title = "TAC, reference-free"
    summary = "soft k-means by cosines in a space that is rebuilt from the soft labels; no references"
    tunables: ClassVar[dict[str, Range]] = {**REFINED, "shrinkage": Range(0.1, 1.0, "number")}
    training_free = True

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 10.0,
        shrinkage: float = 0.7,
        centre: bool = True,
        distractor_cosine: float = -1.0,
        iterations: int = 2,
        learn_scale: bool = False,
        grad_through_soft_labels: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, scale=scale, iterations=iterations, **options)
        if not 0 < shrinkage <= 1:
            raise HandfulError(f"shrinkage must be a number above 0 and at most 1, got {shrinkage}")
        if not -1 <= distractor_cosine < 1:
            raise HandfulError(f"distractor_cosine must be a number from -1 up and below 1, got {distractor_cosine}")
        self.distractor_cosine = distractor_cosine
        self.shrinkage, self.centre, self.grad_through_soft_labels = shrinkage, centre, grad_through_soft_labels
        if learn_scale:
            self.learn_scale()

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        support, unlabelled, query = (unit(part) for part in (episode.support, episode.unlabelled, episode.query))
        means = support.mean(-2)
        plain = mean_logits(query, means, cosine=True)
        if iterations == 0 or unlabelled.shape[-2] == 0:
            return self.scale * plain.expand(iterations + 1, *plain.shape)
        x = torch.cat([support.flatten(-3, -2), unlabelled], dim=-2)
        middle = x.mean(-2, keepdim=True) if self.centre else torch.zeros_like(x[..., :1, :])
        x = x - middle
        gram = x @ x.mT  # (..., n, n)
        known = Points(gram, gram.diagonal(dim1=-2, dim2=-1))
        asked = Points((query - middle) @ x.mT, (query - middle).square().sum(-1))
        labels = torch.eye(episode.ways, dtype=x.dtype, device=x.device).repeat_interleave(episode.shots, dim=0)
        labels = labels.expand(*x.shape[:-2], *labels.shape)
        cosines, steps = mean_logits(unlabelled - middle, means - middle, cosine=True), [plain]
        for _ in range(iterations):
            soft = self._soft_labels(cosines)
            soft = soft if self.grad_through_soft_labels else soft.detach()
            space = Space(gram, torch.cat([labels, soft], dim=-2), self.shrinkage, self.centre)
            cosines = space.cosines(known)[..., labels.shape[-2] :, :]
            steps.append(space.cosines(asked))
        return self.scale * torch.stack(steps)

    def _soft_labels(self, cosines: Tensor) -> Tensor:
        """Cosines of points with the class means (..., U, N) -> (..., U, N); what is missing to 1 is no class's."""
        if self.distractor_cosine == -1:
            return torch.softmax(self.soft_scale * cosines, dim=-1)
        cosines = torch.nn.functional.pad(cosines, (0, 1), value=self.distractor_cosine)
        return torch.softmax(self.soft_scale * cosines, dim=-1)[..., :-1]


class Space:
    """The space in which the shrunk covariance V within the classes is the identity, up to a factor.

    Args:
        gram: (..., n, n) G = X X^T.
        labels: (..., n, N) P, rows that sum to 1 at most.
        shrinkage: s.
        centre: whether cosines are around the mean of the class means.
    """

    def __init__(self, gram: Tensor, labels: Tensor, shrinkage: float, centre: bool = True) -> None:
        count = gram.shape[-1]
        mass = labels.sum(-2, keepdim=True)  # (..., 1, N)
        means = labels / torch.where(mass > 0, mass, torch.ones_like(mass))  # class means are means^T X
        eye = torch.eye(count, dtype=gram.dtype, device=gram.device)
        within = (eye * labels.sum(-1, keepdim=True) - means @ labels.mT) * ((1 - shrinkage) / count)  # B
        self.ridge = torch.ones_like(gram[..., :1, :1])
        if shrinkage < 1:
            level = (within * gram).sum((-2, -1)) / ((1 - shrinkage) * count)  # B and G are symmetric
            # Not below the rounding of unit vectors: points that are all alike have no covariance.
            self.ridge = (shrinkage * level.clamp_min(torch.finfo(gram.dtype).eps))[..., None, None]
        middle = means.mean(-1, keepdim=True) * float(centre)  # (..., n, 1): m, that of the class means, or 0
        system = self.ridge * eye + within @ gram
        solved = solve(system, torch.cat([within, means, middle], dim=-1))
        self.inner, solved = solved[..., :count], solved[..., count:]  # B (l I + G B)^-1, which is (l I + B G)^-1 B
        self.targets, self.centre = solved[..., :-1] - solved[..., -1:], solved[..., -1:]  # V^-1 of (m_k - m), and of m
        self.about = middle.mT @ gram  # (..., 1, n): products of m with the rows of X
        lengths = ((means - middle) * (gram @ self.targets)).sum(-2, keepdim=True)  # (..., 1, N)
        self.lengths = lengths.clamp_min(torch.finfo(gram.dtype).tiny).sqrt()

    def cosines(self, points: Points) -> Tensor:
        """Cosines of points with the class means, around the mean of these: (..., P, n), (..., P) -> (..., P, N)."""
        around = points.products - self.about
        dots = around @ self.targets  # (..., P, N)
        plain = points.squares.unsqueeze(-1) - (points.products @ self.inner * points.products).sum(-1, keepdim=True)
        size = plain / self.ridge - ((points.products + around) @ self.centre)
        found: Tensor = dots / size.clamp_min(torch.finfo(dots.dtype).tiny).sqrt() / self.lengths
        return found
