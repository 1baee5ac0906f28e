"""Label propagation along a graph of nearest neighbours (Zhou et al., NeurIPS 2003), in closed form.

W (n, n) holds the weights between nodes, in [0, 1] and 1 between a node and itself. Each node keeps its k largest, and
an edge stays if either end keeps it. With D the degrees and Y one-hot rows for labelled nodes, zero for others,

    S = D^-1/2 W D^-1/2,        F = (I - alpha S)^-1 Y

I - alpha S = D^-1/2 (D - alpha W) D^-1/2 is symmetric, and positive definite with a condition number of at most
(1 + alpha) / (1 - alpha), whether the graph is connected or not. Every node has its edge to itself, so no degree is
below 1. Edges of the same weight as the k-th are kept with it: the graph does not depend on the order of the nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORST_ERROR = 1e-4  # relative; where the condition number allows for more, the system is solved in float64


def gaussian_weights(points: Tensor, nodes: Tensor, scale: float) -> Tensor:
    """exp(-scale |a - b|^2): (..., P, D), (..., n, D) -> (..., P, n); with ``points is nodes``, 1 on the diagonal."""
    shift = nodes.mean(-2, keepdim=True)
    left, right = points - shift, nodes - shift
    # Not differences first: exp() only needs an absolute precision of the squares, and this is many times as fast.
    squares = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2) - 2 * left @ right.mT
    weights = torch.exp(-scale * squares.clamp_min(0))
    if points is not nodes:
        return weights
    diagonal = torch.eye(nodes.shape[-2], dtype=torch.bool, device=nodes.device)
    # Symmetric to the last bit: what node i keeps is read off row i, and looked up in row j as well.
    return ((weights + weights.mT) / 2).masked_fill(diagonal, 1)


def propagate(weights: Tensor, labels: Tensor, alpha: float, neighbours: int) -> Tensor:
    """F of one graph: weights (..., n, n), labels (n, N) -> (..., n, N)."""
    wide = _widen(weights, alpha)
    kept = _keep(wide, wide, _largest(wide, neighbours)[..., -1])
    root = kept.sum(-1).rsqrt()
    system = torch.eye(len(labels)).to(wide) - alpha * root.unsqueeze(-1) * kept * root.unsqueeze(-2)
    scores: Tensor = torch.linalg.solve(system, labels.to(wide).expand(*weights.shape[:-1], labels.shape[-1]))
    return scores.to(weights.dtype)


def propagate_each(weights: Tensor, edges: Tensor, alpha: float, neighbours: int) -> Tensor:
    """How much of the label of each node reaches a query, when each query is in a graph alone with the nodes.

    Exactly the last row of (I - alpha S)^-1 of the graph of n + 1 nodes, but for its last entry.

    Args:
        weights: (..., n, n) between the nodes that all graphs share.
        edges: (..., Q, n) from each query to them.
        alpha, neighbours: as above; at least 2 neighbours.

    Returns:
        (..., Q, n); times the labels of the nodes, it gives the queries' rows of F.
    """
    dtype, weights, edges = weights.dtype, _widen(weights, alpha), _widen(edges, alpha)
    # The k-th largest of a node's row once the query is in it, from the two that it can come between.
    before, last = _largest(weights, neighbours)[..., -2:].unsqueeze(-3).unbind(-1)  # (..., 1, n)
    reach = torch.maximum(last, torch.minimum(before, edges))  # (..., Q, n)
    own = _largest(edges, neighbours - 1)[..., -1:]  # (..., Q, 1); the first of the query's k is itself
    edges = edges * (edges >= torch.minimum(reach, own))
    # One episode at a time: the graphs of its queries fit the processor's cache.
    parts = (part.reshape(-1, *part.shape[-2:]) for part in (weights, edges, reach))
    rows = [_query_rows(w, e, r, alpha) for w, e, r in zip(*parts, strict=True)]
    return torch.stack(rows).reshape(edges.shape).to(dtype)


def _query_rows(weights: Tensor, edges: Tensor, reach: Tensor, alpha: float) -> Tensor:
    """The solve of :func:`propagate_each` for one episode: (n, n), (Q, n), (Q, n) -> (Q, n)."""
    system = _keep(-alpha * weights, weights, reach)  # (Q, n, n): -alpha W, in as few passes as can be
    degree, own_degree = edges - system.sum(-1) / alpha, 1 + edges.sum(-1, keepdim=True)
    # With A = diag(degree) - alpha W of the shared nodes and c = -alpha edges, the inverse of [[A, c], [c^T, a]] has
    # the last row [-c^T A^-1, 1] / (a - c^T A^-1 c).
    system.diagonal(dim1=-2, dim2=-1).add_(degree)
    flow = alpha * edges  # -c
    factor = torch.linalg.cholesky(system, upper=True)  # the lower one takes half as long again
    solved = torch.cholesky_solve(flow.unsqueeze(-1), factor, upper=True).squeeze(-1)
    pivot = own_degree - alpha - (flow * solved).sum(-1, keepdim=True)
    return solved / pivot * (degree * own_degree).sqrt()


def _keep(values: Tensor, weights: Tensor, reach: Tensor) -> Tensor:
    """Values of edges with the weight that either end asks for, else 0: (..., n, n) x2, (..., n) -> (..., n, n)."""
    return torch.where(weights >= torch.minimum(reach.unsqueeze(-1), reach.unsqueeze(-2)), values, 0)


def _largest(weights: Tensor, count: int) -> Tensor:
    """The ``count`` largest of each row in falling order, 0 where there are not so many: (..., n) -> (..., count)."""
    found = weights.topk(min(count, weights.shape[-1])).values
    return nn.functional.pad(found, (0, count - found.shape[-1]))


def _widen(weights: Tensor, alpha: float) -> Tensor:
    """Weights in float64, if the condition number asks for it."""
    condition = (1 + alpha) / (1 - alpha)
    return weights.double() if torch.finfo(weights.dtype).eps * condition > WORST_ERROR else weights
