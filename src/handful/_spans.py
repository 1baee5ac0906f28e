"""The fast path of :func:`handful.functional.tac` without gradients: few passes over the vectors, and little memory.

The formulas are those of ``functional.py``; a test holds both to the same answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._linalg import LinearLogits, gram_suffices, inverse_roots

CHUNK_NUMBERS = 1 << 20  # numbers of a chunk of unlabelled points: 4 MiB in float32, which the cache holds


class SoftSums(NamedTuple):
    """Sums over softly labelled points, per class: of their soft labels (..., N, 1), and of the points (..., N, D)."""

    mass: Tensor
    total: Tensor


class SpanLogits:
    """Class means to logits as :class:`handful.functional.TaskLogits`, without gradients: cheaper for small episodes.

    All vectors but the points lie in the span of the P references and P means. With T these 2P rows, every error and
    every projected target is a combination a T, and the product of two of them is a G b^T, with the Gram matrix
    G = T T^T. So one pass over T gives G, small matrices do the rest, and one more pass turns combinations into
    weights. In float64, for the reason given in :func:`thin_svd`.

    Args:
        references: (..., N, D).
        distractor: (..., 1, D), the reference of the distractor cluster, or None.
        modified_references: the formula of that name; it is linear, so it also maps combinations of references.
    """

    @staticmethod
    def suits(references: Tensor) -> bool:
        """Whether this path is exact enough for references of this type and shape."""
        tolerance = torch.finfo(torch.float32).eps * max(references.shape[-2:])
        return references.dtype == torch.float32 and references.device.type != "mps" and gram_suffices(tolerance)

    def __init__(
        self, references: Tensor, distractor: Tensor | None, modified_references: Callable[[Tensor], Tensor]
    ) -> None:
        ways = references.shape[-2]
        references = references if distractor is None else torch.cat([references, distractor], dim=-2)
        *batch, pairs, dim = references.shape
        self.ways, self.pairs = ways, pairs
        self.rows = references.new_empty((*batch, 2 * pairs, dim), dtype=torch.float64)  # T
        self.rows[..., :pairs, :] = references
        self.fixed = self.rows[..., :pairs, :] @ self.rows[..., :pairs, :].mT
        eye = torch.eye(2 * pairs, dtype=torch.float64, device=references.device)
        self.target_directions = {}
        for count in {ways, pairs}:
            modified = modified_references(eye[:count, :count])  # as combinations of the references
            length = torch.linalg.vector_norm(modified @ self.rows[..., :count, :], dim=-1, keepdim=True)
            self.target_directions[count] = modified / torch.where(length > 0, length, 1.0)
        # The targets, references and then means, as combinations of T around the mean of each kind.
        self.centres = torch.cat([eye[:ways].mean(0).expand(ways, -1), eye[pairs:].mean(0).expand(pairs, -1)])
        self.centred = torch.cat([eye[:ways], eye[pairs:]]) - self.centres

    def __call__(self, means: Tensor) -> tuple[LinearLogits, LinearLogits]:
        pairs, ways, centred = self.pairs, self.ways, self.centred
        self.rows[..., pairs:, :] = means
        products = self.rows[..., pairs:, :] @ self.rows.mT  # of the means with T: all that is new
        gram = torch.cat([torch.cat([self.fixed, products[..., :pairs].mT], dim=-1), products], dim=-2)  # (..., 2P, 2P)
        if pairs == ways:
            projected = self._project(centred, gram, ways)
        else:
            projected = torch.cat(
                [self._project(centred[:ways], gram, ways), self._project(centred[ways:], gram, pairs)], dim=-2
            )
        offsets = ((projected @ gram) * (projected + 2 * self.centres)).sum(-1, keepdim=True).to(means)
        weights = (2 * projected @ self.rows).to(means)
        both = LinearLogits(weights, offsets)
        return both.map(lambda tensor: tensor[..., :ways, :]), both.map(lambda tensor: tensor[..., ways:, :])

    def _project(self, vectors: Tensor, gram: Tensor, count: int) -> Tensor:
        """Project combinations of T (V, 2P) onto the null space of the errors of the first ``count`` pairs."""
        length = gram.diagonal(dim1=-2, dim2=-1)[..., self.pairs : self.pairs + count].sqrt()
        errors = gram.new_zeros((*gram.shape[:-2], count, 2 * self.pairs))
        errors[..., :count] = self.target_directions[count]
        errors.diagonal(self.pairs, dim1=-2, dim2=-1)[...] = -1 / torch.where(length > 0, length, 1.0)
        products = errors @ gram  # of the errors with T
        roots = inverse_roots(products @ errors.mT, torch.finfo(torch.float32).eps * max(count, self.rows.shape[-1]))
        return vectors - ((vectors @ products.mT) @ (roots @ roots.mT)) @ errors


def streamed_sums(points: Tensor, logits: LinearLogits, scale: float | Tensor) -> SoftSums:
    """Label points (..., U, D) softly and sum them up per class, a chunk of points at a time.

    A chunk is labelled and added up while it is in the processor's cache: any number of points takes the same extra
    memory, and each is fetched once. Classes by points, not points by classes: both products then run along the memory.
    """
    batch, (amount, dim) = logits.weights.shape[:-2], points.shape[-2:]

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(*batch, -1, -1).reshape(batch.numel(), *tensor.shape[-2:])

    points, logits = flat(points), logits.map(flat)
    mass, total = torch.zeros_like(logits.offsets), torch.zeros_like(logits.weights)
    together, length = max(1, CHUNK_NUMBERS // max(1, amount * dim)), max(1, CHUNK_NUMBERS // dim)
    for first in range(0, len(points), together):
        some = slice(first, first + together)
        here = logits.map(operator.itemgetter(some))
        for part in torch.split(points[some], length, dim=-2):
            soft = torch.softmax(scale * here(part), dim=-2)
            mass[some] += soft.sum(-1, keepdim=True)
            total[some].baddbmm_(soft, part)
    return SoftSums(mass.reshape(*batch, *mass.shape[-2:]), total.reshape(*batch, *total.shape[-2:]))
