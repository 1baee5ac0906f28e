"""The formulas of Task-Adaptive Clustering on tensors: batched over episodes, differentiable, without state.

Seo, Yoon and Moon, "Task-Adaptive Clustering for Semi-Supervised Few-Shot Classification", 2020 (TAC), and Yoon, Seo
and Moon, "TapNet: Neural Network Augmented with Task-Adaptive Projection for Few-Shot Learning", ICML 2019.

Shapes: every tensor may have leading batch dimensions ``...`` (episodes). N classes (ways), D dimensions, U unlabelled
points, Q queries.

The one idea that keeps this cheap. M is the null space of the N error vectors. It has D - N dimensions, but we never
build it: with Q a thin orthonormal basis (D x N) of the *errors*, projecting onto M is P = I - Q Q^T, so

    |M(z) - M(w)|^2 = |P(z - w)|^2 = |Pz|^2 - 2 z . Pw + |Pw|^2        (P is symmetric and idempotent)

and |Pz|^2 is the same for every w: it cancels in a softmax over classes. So only the N targets w are projected, at
O(N D) per point, and no D x D matrix or full SVD is ever formed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .errors import TacitError


class TacResult(NamedTuple):
    """What :func:`tac` returns.

    Attributes:
        logits: (iterations + 1, ..., Q, N); entry i is the query logits after i refinements, so entry 0 is TapNet.
            They are negative squared distances up to a constant per query.
        probabilities: (iterations, ..., U, N), or N + 1 with a distractor reference (the last column): entry i is the
            soft labels that refinement i + 1 used.
        centroids: (iterations + 1, ..., N, D), or N + 1: the class means before each refinement and after the last.
    """

    logits: Tensor
    probabilities: Tensor
    centroids: Tensor


def modified_references(references: Tensor) -> Tensor:
    """Each reference minus the mean of the others: (..., N, D) -> (..., N, D).

    Pulling a class towards this vector also pushes it away from the references of the other classes. A single
    reference has no others and stays as it is.

    Example:
        >>> modified_references(torch.eye(2))
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """
    ways = references.shape[-2]
    if ways == 1:
        return references
    others = references.sum(-2, keepdim=True) - references
    return references - others / (ways - 1)


def error_vectors(centroids: Tensor, references: Tensor) -> Tensor:
    """Unit modified reference minus unit centroid, per class: (..., N, D), (..., N, D) -> (..., N, D).

    Raises:
        TacitError: if the two do not pair up.
    """
    if centroids.shape[-2:] != references.shape[-2:]:
        raise TacitError(
            f"each class needs one reference: got centroids of shape {tuple(centroids.shape)} "
            f"and references of shape {tuple(references.shape)}"
        )
    return _unit(modified_references(references)) - _unit(centroids)


def null_basis(errors: Tensor) -> Tensor:
    """Orthonormal columns that span the errors: (..., N, D) -> (..., D, N).

    M, the task's projection space, is the orthogonal complement of these columns. If the errors are linearly dependent
    (a centroid parallel to its reference, a class given twice, more classes than dimensions), the missing directions
    are zero columns. As in NumPy's ``matrix_rank``, a direction is missing if its singular value is at most
    ``eps * max(N, D)`` times the largest.

    The columns are unique only up to a rotation among themselves; the gradient is that of the projection Q Q^T, which
    is all that the distances depend on. It stays finite for dependent errors and for repeated singular values.

    Example:
        >>> null_basis(torch.tensor([[0.0, 3.0, 0.0]])).abs()
        tensor([[0.],
                [1.],
                [0.]])
    """
    with torch.no_grad():
        basis, weights = _thin_svd(errors.detach())
    if not errors.requires_grad:
        return basis
    # Q = E^T W with W = V / sigma. Moving E moves the span only by what leaves it: dQ = (I - Q Q^T) dE^T W, the rest is
    # a rotation of the columns. This avoids the 1 / (sigma_i - sigma_j) of differentiating an eigen-decomposition.
    moved = errors.mT @ weights
    moved = moved - moved.detach()  # zero in value, dE^T W in the derivative
    return basis + moved - basis @ (basis.mT @ moved)


def projected_sqdist(points: Tensor, targets: Tensor, basis: Tensor | None) -> Tensor:
    """Squared distances in M, never negative.

    points (..., P, D), targets (..., T, D), basis (..., D, N) -> (..., P, T).
    ``basis=None`` stands for no projection, here and below: distances in the embedding space itself.

    Example:
        >>> basis = null_basis(torch.tensor([[0.0, 3.0, 0.0]]))  # M forgets the second axis
        >>> projected_sqdist(torch.tensor([[1.0, 5.0, 2.0]]), torch.zeros(1, 3), basis)
        tensor([[5.]])
    """
    # Subtracting the targets' mean changes no distance and saves digits when all vectors share a large mean.
    shift = targets.mean(-2, keepdim=True)
    points, targets = (_project(vectors - shift, basis) for vectors in (points, targets))
    batch = torch.broadcast_shapes(points.shape[:-2], targets.shape[:-2])  # type: ignore[no-untyped-call]
    points, targets = (vectors.expand(*batch, *vectors.shape[-2:]) for vectors in (points, targets))
    # Differences first and squares after: |z|^2 - 2 z.w + |w|^2 would cancel for near points, and could go below zero.
    return torch.cdist(points, targets, compute_mode="donot_use_mm_for_euclid_dist").square()


def projected_logits(points: Tensor, targets: Tensor, basis: Tensor | None) -> Tensor:
    """``-projected_sqdist`` up to a constant per point, at half the cost: (..., P, D), (..., T, D) -> (..., P, T).

    The constant cancels in a softmax and in an argmax over targets.
    """
    # Around the targets' mean m: |P(z - m) - P(w - m)|^2 up to |P(z - m)|^2. A mean that all vectors share, which real
    # embeddings have, would otherwise eat the digits of the differences. The points themselves need not be shifted.
    mean = targets.mean(-2, keepdim=True)
    projected = _project(targets - mean, basis)
    return 2 * points @ projected.mT - (projected * (projected + 2 * mean)).sum(-1).unsqueeze(-2)


def soft_labels(unlabelled: Tensor, centroids: Tensor, basis: Tensor | None, scale: float | Tensor = 1.0) -> Tensor:
    """Probability of each class for each unlabelled point, by distance to the class means in M.

    unlabelled (..., U, D), centroids (..., N, D), basis (..., D, N') -> (..., U, N); rows sum to 1.
    ``scale`` multiplies the squared distances: larger is surer.
    """
    return torch.softmax(scale * projected_logits(unlabelled, centroids, basis), dim=-1)


def refine(centroids: Tensor, shots: int | Tensor, unlabelled: Tensor, probabilities: Tensor) -> Tensor:
    """Means over the labelled and softly labelled points: -> (..., N, D).

    Args:
        centroids: (..., N, D) means of the labelled points (not those of an earlier refinement).
        shots: how many labelled points stand behind each mean: an int, or (..., N).
        unlabelled: (..., U, D).
        probabilities: (..., U, N) soft labels.

    A class with no labelled point and no probability at all keeps its centroid.
    """
    weight = torch.as_tensor(shots, dtype=centroids.dtype, device=centroids.device)
    weight = weight.expand(centroids.shape[:-1]).unsqueeze(-1)  # (..., N, 1)
    mass = weight + probabilities.sum(-2).unsqueeze(-1)
    empty = mass <= 0
    means = (weight * centroids + probabilities.mT @ unlabelled) / torch.where(empty, torch.ones_like(mass), mass)
    return torch.where(empty, centroids, means)


def tac(
    centroids: Tensor,
    shots: int | Tensor,
    unlabelled: Tensor,
    queries: Tensor,
    references: Tensor,
    iterations: int,
    distractor_reference: Tensor | None = None,
    scale: float | Tensor = 1.0,
    *,
    grad_through_projection: bool = True,
    grad_through_soft_labels: bool = True,
) -> TacResult:
    """Task-Adaptive Clustering: cluster the unlabelled points in M, refine the means, rebuild M, repeat.

    Args:
        centroids: (..., N, D) means of the labelled points of each class.
        shots: labelled points behind each mean: an int, or (..., N).
        unlabelled: (..., U, D); U may be 0.
        queries: (..., Q, D).
        references: (..., N, D) or (N, D), learned, one per class.
        iterations: refinements.
        distractor_reference: (D,), learned; gives TACdap, where one more cluster, which starts at the mean of all
            unlabelled points, takes those that belong to no class. It shapes the clustering space only: queries are
            classified in the space of the N real classes.
        scale: multiplies the squared distances in the soft labels.
        grad_through_projection: if False, every M is a constant in the backward pass.
        grad_through_soft_labels: if False, the soft labels are constants in the backward pass, except to the distractor
            reference, which has no other way to learn (and none at all if every M is a constant).

    Example:
        >>> c = torch.tensor([[4.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0]])
        >>> result = tac(c, 1, c.repeat(3, 1), c, torch.eye(4)[:2], iterations=2)
        >>> result.logits.shape, result.probabilities.shape
        (torch.Size([3, 2, 2]), torch.Size([2, 6, 2]))
        >>> result.logits[-1].argmax(-1)
        tensor([0, 1])
    """
    ways = centroids.shape[-2]
    references = references.expand_as(centroids)
    labelled, shots = centroids, torch.as_tensor(shots, dtype=centroids.dtype, device=centroids.device)
    distractor = None
    if distractor_reference is not None and unlabelled.shape[-2] > 0:
        # One more pair: it starts at the mean of all unlabelled points, and no labelled point stands behind it.
        labelled = torch.cat([centroids, unlabelled.mean(-2, keepdim=True)], dim=-2)
        shots = torch.nn.functional.pad(shots.expand(centroids.shape[:-1]), (0, 1))
        distractor = distractor_reference.expand_as(labelled[..., :1, :])

    def space(means: Tensor, references: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and grad_through_projection):
            return null_basis(error_vectors(means, references))

    def constant(tensor: Tensor) -> Tensor:
        return tensor if grad_through_soft_labels else tensor.detach()

    means = labelled
    classification = space(means[..., :ways, :], references)
    logits, probabilities, history = [projected_logits(queries, references, classification)], [], [means]
    for _ in range(iterations):
        if distractor is None:
            clustering = constant(classification)
        else:
            clustering = space(constant(means), torch.cat([constant(references), distractor], dim=-2))
        probabilities.append(soft_labels(constant(unlabelled), constant(means), clustering, scale))
        means = refine(labelled, shots, unlabelled, probabilities[-1])
        classification = space(means[..., :ways, :], references)
        logits.append(projected_logits(queries, references, classification))
        history.append(means)
    none = unlabelled.new_zeros((0, *unlabelled.shape[:-1], labelled.shape[-2]))
    return TacResult(
        logits=torch.stack(logits),
        probabilities=torch.stack(probabilities) if probabilities else none,
        centroids=torch.stack(history),
    )


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; a zero vector stays zero and has a finite gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


def _project(vectors: Tensor, basis: Tensor | None) -> Tensor:
    """Onto M: vectors (..., P, D) minus their part in the span of the basis (..., D, N)."""
    return vectors if basis is None else vectors - (vectors @ basis) @ basis.mT


def _thin_svd(errors: Tensor) -> tuple[Tensor, Tensor]:
    """The basis Q (..., D, N) of the rows of E, and W (..., N, N) with Q = E^T W; zero columns for missing directions.

    float32 goes through the N x N Gram matrix in float64, about 20 times cheaper than an SVD. Squaring halves the
    digits, but float64 has more than twice those of float32. float64 input has no wider type to square in: thin SVD.
    """
    ways, dim = errors.shape[-2:]
    tolerance = torch.finfo(errors.dtype).eps * max(ways, dim)
    # Apple's GPU has no float64; the matrices are small enough to go to the processor and back.
    device = torch.device("cpu") if errors.device.type == "mps" else errors.device
    wide = errors.to(device).to(torch.float64)
    if errors.dtype == torch.float64:
        left, sigma, _ = torch.linalg.svd(wide, full_matrices=False)  # (..., N, min(N, D))
    else:
        eigenvalues, left = torch.linalg.eigh(wide @ wide.mT)
        sigma = eigenvalues.clamp_min(0).sqrt()
    kept = sigma > tolerance * sigma.amax(-1, keepdim=True)
    weights = left * torch.where(kept, 1 / sigma, torch.zeros_like(sigma)).unsqueeze(-2)
    weights = torch.nn.functional.pad(weights, (0, ways - weights.shape[-1]))
    # sigma is off by eps * (sigma_max / sigma)^2 in the Gram route; one Newton-Schulz step squares that error away.
    basis = wide.mT @ weights
    correction = 1.5 * torch.eye(ways, dtype=wide.dtype, device=device) - 0.5 * (basis.mT @ basis)
    return (basis @ correction).to(errors), (weights @ correction).to(errors)
