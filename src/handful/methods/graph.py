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

from .._linalg import solve

GROUP = 16  # queries whose systems are solved together
WORST_ERROR = 1e-4  # relative; where the condition number allows for more, the system is solved in float64


def gaussian_weights(points: Tensor, nodes: Tensor, scale: float | Tensor) -> Tensor:
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
    scores = solve(system, labels.to(wide).expand(*weights.shape[:-1], labels.shape[-1]))
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
    parts = (part.reshape(-1, *part.shape[-2:]) for part in (weights, edges, last, reach))
    rows = [_query_rows(w, e, k[0], r, alpha) for w, e, k, r in zip(*parts, strict=True)]
    return torch.stack(rows).reshape(edges.shape).to(dtype)


def _query_rows(weights: Tensor, edges: Tensor, last: Tensor, reach: Tensor, alpha: float) -> Tensor:
    """The solve of :func:`propagate_each` for one episode: (n, n), (Q, n), (n,), (Q, n) -> (Q, n).

    With A = diag(degree) - alpha W of the shared nodes and c = -alpha edges, the inverse of [[A, c], [c^T, a]] has the
    last row [-c^T A^-1, 1] / (a - c^T A^-1 c). A query changes A little: it raises the degrees of its neighbours, and a
    node that takes it for a neighbour lets its farthest go. With T the few nodes that this touches and C (T x T) the
    change, (A + C)^-1 f = A^-1 (I + C A^-1)^-1 f for f on T (Woodbury), so A is inverted once for all queries.
    """
    shared = _keep(weights, weights, last)
    degree = shared.sum(-1)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(torch.diag(degree) - alpha * shared))
    solved, degrees = torch.zeros_like(edges), degree.repeat(len(edges), 1)
    # A few queries are everybody's neighbour: those that touch about as much are solved together.
    for group in torch.split(((edges > 0) | (reach > last)).sum(-1).argsort(), GROUP):
        places, change = _changes(weights, shared, last, edges[group], reach[group], alpha)
        system = torch.eye(places.shape[1]).to(change) + change @ inverse[places.unsqueeze(-1), places.unsqueeze(-2)]
        flow = solve(system, alpha * edges[group].gather(1, places))
        solved[group] = torch.zeros_like(edges[group]).scatter(1, places, flow) @ inverse  # A^-1 is symmetric
        # On the diagonal stands what the degrees have grown by: no node lets its edge to itself go.
        degrees[group] = degrees[group].scatter_add(1, places, change.diagonal(dim1=-2, dim2=-1))
    own_degree = 1 + edges.sum(-1, keepdim=True)
    pivot = own_degree - alpha - alpha * (edges * solved).sum(-1, keepdim=True)
    return solved / pivot * (degrees * own_degree).sqrt()


def _changes(
    weights: Tensor, shared: Tensor, last: Tensor, edges: Tensor, reach: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """The nodes that each query touches (Q, t), some more where others touch more, and what it adds to A (Q, t, t)."""
    # An edge is let go if neither end reaches it any more, so one of its ends has a new k-th neighbour.
    rows = _places(reach > last)  # (Q, few)
    lost = (shared[rows] > 0) & (
        weights[rows] < torch.minimum(reach.gather(1, rows).unsqueeze(-1), reach.unsqueeze(-2))
    )
    touched = (edges > 0) | lost.any(1)
    places = _places(touched.scatter(1, rows, lost.any(2) | touched.gather(1, rows)))
    far, between = reach.gather(1, places), shared[places.unsqueeze(-1), places.unsqueeze(-2)]
    gone = torch.where(between < torch.minimum(far.unsqueeze(-1), far.unsqueeze(-2)), between, 0)
    return places, alpha * gone + torch.diag_embed(edges.gather(1, places) - gone.sum(-1))


def _places(mask: Tensor) -> Tensor:
    """Where each row of a mask (rows, n) is set, filled up with other places to as many as the fullest row has."""
    return mask.to(torch.uint8).topk(max(1, int(mask.sum(1).max()))).indices


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
