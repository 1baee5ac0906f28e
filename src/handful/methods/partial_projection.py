"""Task-Adaptive Clustering with two more choices: how much of the error directions is removed, and what classifies.

A plain form of :func:`handful.functional.tac`, which computes the same faster where neither choice is made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import functional as F
from .._linalg import unit


def partial_tac(
    centroids: Tensor,
    shots: int,
    unlabelled: Tensor,
    queries: Tensor,
    references: Tensor,
    iterations: int,
    *,
    by_means: bool,
    share: float,
    distractor_reference: Tensor | None = None,
    scale: float | Tensor = 1.0,
    reference_bias: Tensor | None = None,
    distractor_offset: Tensor | None = None,
    cosine: bool = False,
    grad_through_projection: bool = True,
    grad_through_soft_labels: bool = True,
    keep_steps: bool = True,
) -> F.TacResult:
    """As :func:`handful.functional.tac`, in the space of the points z - share * Q Q^T z, with Q a basis of the errors.

    Args:
        by_means: the logits of queries are cosines with the class means in that space, instead of negative squared
            distances to the references.
        share: 1 for M, 0 for the embedding space.

    All else is as there.
    """
    ways, soft = centroids.shape[-2], []
    references = references.expand_as(centroids)
    fixed = references if grad_through_soft_labels else references.detach()
    counts: int | Tensor = shots
    paired = distractor_reference is not None and unlabelled.shape[-2] > 0
    if paired and distractor_reference is not None:
        fixed = torch.cat([fixed, distractor_reference.expand_as(fixed[..., :1, :])], dim=-2)
        centroids = torch.cat([centroids, unlabelled.mean(-2, keepdim=True)], dim=-2)
        counts = torch.tensor([float(shots)] * ways + [0.0], dtype=centroids.dtype, device=centroids.device)

    def space(means: Tensor, pairs: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and grad_through_projection):
            return F.null_basis(F.error_vectors(means, pairs))

    def inside(vectors: Tensor, basis: Tensor) -> Tensor:
        return vectors - share * (vectors @ basis) @ basis.mT

    def label_softly(means: Tensor) -> Tensor:
        points = unlabelled
        if not grad_through_soft_labels:
            means, points = means.detach(), points.detach()
        basis = space(means, fixed)
        if not paired and not grad_through_soft_labels:
            basis = basis.detach()
        points, targets = inside(points, basis), inside(means, basis)
        logits = unit(points) @ unit(targets).mT if cosine else F.projected_logits(points, targets, None)
        if paired and distractor_offset is not None:
            last = torch.zeros_like(logits[..., :1, :])
            last[..., 0, -1] = distractor_offset
            logits = logits - last
        soft.append(torch.softmax(scale * logits, dim=-1))
        return soft[-1]

    def classify(means: Tensor) -> Tensor:
        means = means[..., :ways, :]
        basis = space(means, references)
        points, targets = inside(queries, basis), inside(means if by_means else references, basis)
        if by_means:
            return unit(points) @ unit(targets).mT
        bias = 0 if reference_bias is None else 2 * reference_bias.unsqueeze(-2)
        return F.projected_logits(points, targets, None) + bias

    history = list(F.refinements(centroids, counts, unlabelled, iterations, label_softly))
    logits = torch.stack([classify(means) for means in history])
    none = unlabelled.new_zeros((0, *unlabelled.shape[:-1], centroids.shape[-2]))
    if not keep_steps:
        return F.TacResult(logits, none, history[-1].unsqueeze(0))
    return F.TacResult(logits, torch.stack(soft) if soft else none, torch.stack(history))
