"""EPNet (Rodriguez, Laradji, Drouin and Lacoste, "Embedding Propagation", ECCV 2020): vectors smoothed over a graph.

All n points X are nodes. With sq the squared distances divided by their standard deviation over all pairs, d the sums
of the rows of W and S = W_ij / sqrt((d_i + e) (d_j + e)),

    W_ij = exp(-scale sq_ij),  W_ii = 0,        P = (I - alpha S)^-1.

Vectors are propagated, X' = P X; then labels, along the graph of X': the scores are P' Y, with the rows of P' divided
by their sums.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .._linalg import inverse
from ..errors import HandfulError
from .adapting import AdaptingMethod, Task
from .base import Range

LEAST_DEGREE = 1e-4  # e, as in the authors' code
LEAST_SCORE = 1e-6  # added to scores before their logarithm is taken, as there


class Graph(NamedTuple):
    """A graph of n points, and how further points are joined to it.

    Attributes:
        propagator: (..., n, n) P.
        degrees: (..., n) d + e.
        spread: (..., 1, 1) standard deviation of the squared distances.
    """

    propagator: Tensor
    degrees: Tensor
    spread: Tensor


class EmbeddingPropagation(AdaptingMethod):
    """Logits are ``scale`` times the logarithms of propagated labels.

    A query reads the graph of labelled points and set, which does not see it. The fixed point X' = alpha S X' + X gives
    it the vector z' = z + alpha s X', with s its row of S; the same holds for its row of P'. Transductive, the queries
    are nodes of the graph.

    Args:
        alpha: of the propagation of vectors, below 1.
        label_alpha: of that of labels.

    The scale of the squared distances is ``cluster_scale``; ``scale`` multiplies the logits.
    """

    title = "EPNet"
    summary = "Embedding Propagation: vectors, then labels, smoothed over a graph of all images"
    tunables: ClassVar[dict[str, Range]] = {
        "cluster_scale": Range(0.1, 10.0),
        "alpha": Range(0.2, 0.9, "number"),
        "label_alpha": Range(0.1, 0.9, "number"),
    }

    def __init__(self, dim: int, ways: int, *, alpha: float = 0.5, label_alpha: float = 0.2, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        for name, value in {"alpha": alpha, "label_alpha": label_alpha}.items():
            if not 0 < value < 1:
                raise HandfulError(f"{name} must be a number between 0 and 1, got {value}")
        self.alpha, self.label_alpha = alpha, label_alpha

    def classify(self, task: Task) -> Tensor:
        points, given = task.points, task.labels
        gram = points @ points.mT
        graph = self._graph(squares(gram), self.alpha)
        moved = graph.propagator @ gram @ graph.propagator.mT  # inner products of X', P is symmetric
        labelled = self._graph(squares(moved), self.label_alpha)
        if self.transductive:
            flow = labelled.propagator[..., -task.query.shape[-2] :, :]
            return self._scores(flow[..., : len(given)] @ given, flow.sum(-1, keepdim=True))
        products = task.query @ points.mT  # (..., Q, n)
        own = task.query.square().sum(-1, keepdim=True)
        flow = self._flow(graph, squares_to(own, gram, products), self.alpha)
        reach = flow @ gram
        own = own + 2 * (flow * products).sum(-1, keepdim=True) + (reach * flow).sum(-1, keepdim=True)
        products = (products + reach) @ graph.propagator.mT  # of z' with X'
        flow = self._flow(labelled, squares_to(own, moved, products), self.label_alpha)
        return self._scores(flow[..., : len(given)] @ given, flow.sum(-1, keepdim=True) + 1)

    def _graph(self, squares: Tensor, alpha: float) -> Graph:
        """The graph of points with these squared distances (..., n, n)."""
        eye = torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
        pairs = squares.shape[-1] * (squares.shape[-1] - 1)
        mean = squares.sum((-2, -1), keepdim=True) / pairs
        variance = ((squares - mean).square() * (1 - eye)).sum((-2, -1), keepdim=True) / max(1, pairs - 1)
        spread = variance.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
        weights = torch.exp(-self.cluster_scale * squares / spread) * (1 - eye)
        degrees = weights.sum(-1) + LEAST_DEGREE
        root = degrees.rsqrt()
        system = eye - alpha * root.unsqueeze(-1) * weights * root.unsqueeze(-2)
        return Graph(inverse(system), degrees, spread)

    def _flow(self, graph: Graph, squares: Tensor, alpha: float) -> Tensor:
        """alpha s P: how much of each node reaches points with these squared distances to the nodes: (..., Q, n)."""
        weights = torch.exp(-self.cluster_scale * squares / graph.spread)
        degree = weights.sum(-1, keepdim=True) + LEAST_DEGREE
        return alpha * (weights * degree.rsqrt() * graph.degrees.rsqrt().unsqueeze(-2)) @ graph.propagator

    def _scores(self, scores: Tensor, total: Tensor) -> Tensor:
        return self.scale * torch.log(scores / total + LEAST_SCORE)


def squares(gram: Tensor) -> Tensor:
    """Squared distances of points from their inner products: (..., n, n) -> (..., n, n)."""
    return squares_to(gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), gram, gram)


def squares_to(own: Tensor, gram: Tensor, products: Tensor) -> Tensor:
    """Squared distances of points to nodes, from |z|^2 (..., P, 1), those of the nodes and z . x (..., P, n)."""
    return (own + gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - 2 * products).clamp_min(0)
