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

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._linalg import LinearLogits, pairwise_squares, project, thin_svd, unit
from ._spans import SoftSums, SpanLogits, streamed_sums
from .errors import HandfulError


class TacResult(NamedTuple):
    """Query logits, soft labels and class means of :func:`tac`, by refinement.

    Attributes:
        logits: (iterations + 1, ..., Q, N); entry i is the query logits after i refinements, so entry 0 is TapNet.
            They are negative squared distances up to a constant per query.
        probabilities: (iterations, ..., U, N), or N + 1 with a distractor reference (the last column): entry i is the
            soft labels that refinement i + 1 used.
        centroids: (iterations + 1, ..., N, D), or N + 1: the class means before each refinement and after the last.

    Without ``keep_steps``, probabilities has no entry and centroids only the last.
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
        HandfulError: if the two do not pair up.
    """
    if centroids.shape[-2:] != references.shape[-2:]:
        raise HandfulError(
            f"each class needs one reference: got centroids of shape {tuple(centroids.shape)} "
            f"and references of shape {tuple(references.shape)}"
        )
    return unit(modified_references(references)) - unit(centroids)


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
        basis, weights = thin_svd(errors.detach())
    if not errors.requires_grad:
        return basis
    # Q = E^T W with W = V / sigma. Moving E moves the span only by what leaves it: dQ = (I - Q Q^T) dE^T W, the rest is
    # a rotation of the columns. This avoids the 1 / (sigma_i - sigma_j) of differentiating an eigen-decomposition.
    moved = errors.mT @ weights
    moved = moved - moved.detach()  # zero in value, dE^T W in the derivative
    return basis + moved - basis @ (basis.mT @ moved)


def projected_sqdist(points: Tensor, targets: Tensor, basis: Tensor | None) -> Tensor:
    """Squared distances between points and targets in M, never negative.

    points (..., P, D), targets (..., T, D), basis (..., D, N) -> (..., P, T).
    ``basis=None`` stands for no projection, here and below: distances in the embedding space itself.

    Example:
        >>> basis = null_basis(torch.tensor([[0.0, 3.0, 0.0]]))  # M forgets the second axis
        >>> projected_sqdist(torch.tensor([[1.0, 5.0, 2.0]]), torch.zeros(1, 3), basis)
        tensor([[5.]])
    """
    # Subtracting the targets' mean changes no distance and saves digits when all vectors share a large mean.
    shift = targets.mean(-2, keepdim=True)
    points, targets = (project(vectors - shift, basis) for vectors in (points, targets))
    batch = torch.broadcast_shapes(points.shape[:-2], targets.shape[:-2])  # type: ignore[no-untyped-call]
    points, targets = (vectors.expand(*batch, *vectors.shape[-2:]) for vectors in (points, targets))
    if torch.is_grad_enabled() and (points.requires_grad or targets.requires_grad):
        # Differences first and squares after: |z|^2 - 2 z.w + |w|^2 would cancel for near points.
        return torch.cdist(points, targets, compute_mode="donot_use_mm_for_euclid_dist").square()
    return pairwise_squares(points, targets)


def projected_logits(points: Tensor, targets: Tensor, basis: Tensor | None) -> Tensor:
    """``-projected_sqdist`` up to a constant per point, at half the cost: (..., P, D), (..., T, D) -> (..., P, T).

    The constant cancels in a softmax and in an argmax over targets.
    """
    return _distance_logits(targets, basis)(points).mT


def soft_labels(
    unlabelled: Tensor, centroids: Tensor, basis: Tensor | None, scale: float | Tensor = 1.0, *, cosine: bool = False
) -> Tensor:
    """Probability of each class for each unlabelled point, by distance to the class means in M.

    unlabelled (..., U, D), centroids (..., N, D), basis (..., D, N') -> (..., U, N); rows sum to 1.
    ``scale`` multiplies the squared distances: larger is surer. With ``cosine``, it multiplies the cosines of points
    and class means in M, which take the place of the distances.
    """
    logits = _cosine_logits(centroids, basis) if cosine else _distance_logits(centroids, basis)
    return torch.softmax(scale * logits(unlabelled).mT, dim=-1)


def refine(centroids: Tensor, shots: int | Tensor, unlabelled: Tensor, probabilities: Tensor | SoftSums) -> Tensor:
    """Class means over the labelled and softly labelled points: -> (..., N, D).

    Args:
        centroids: (..., N, D) means of the labelled points (not those of an earlier refinement).
        shots: how many labelled points stand behind each mean: an int, or (..., N).
        unlabelled: (..., U, D).
        probabilities: (..., U, N) soft labels; or, where they are not kept, the sums that they would be needed for.

    A class with no labelled point and no probability at all keeps its centroid.
    """
    if isinstance(probabilities, SoftSums):
        mass, total = probabilities
    else:
        mass, total = probabilities.sum(-2).unsqueeze(-1), probabilities.mT @ unlabelled
    weight = _column(shots, centroids)
    mass, total = weight + mass, weight * centroids + total
    empty = mass <= 0
    if not empty.any():
        return total / mass
    return torch.where(empty, centroids, total / torch.where(empty, torch.ones_like(mass), mass))


def refinements(
    centroids: Tensor,
    shots: int | Tensor,
    unlabelled: Tensor,
    iterations: int,
    label_softly: Callable[[Tensor], Tensor | SoftSums],
) -> Iterator[Tensor]:
    """Yield the class means (..., N, D) after 0, 1, ... refinements: the loop that all clustering methods share.

    Args:
        centroids, shots, unlabelled: as for :func:`refine`.
        iterations: refinements.
        label_softly: maps class means (..., N, D) to the soft labels (..., U, N) of the unlabelled points.

    Example:
        >>> points = torch.tensor([[0.0], [2.0], [9.0]])
        >>> labels = lambda means: soft_labels(points, means, basis=None)
        >>> [means.flatten().tolist() for means in refinements(torch.tensor([[1.0], [8.0]]), 1, points, 1, labels)]
        [[1.0, 8.0], [1.0, 8.5]]
    """
    means = centroids
    yield means
    for _ in range(iterations):
        means = refine(centroids, shots, unlabelled, label_softly(means))
        yield means


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
    reference_bias: Tensor | None = None,
    distractor_offset: Tensor | None = None,
    cosine: bool = False,
    grad_through_projection: bool = True,
    grad_through_soft_labels: bool = True,
    keep_steps: bool = True,
) -> TacResult:
    """Task-Adaptive Clustering: cluster the unlabelled points in M, refine the means, rebuild M, repeat.

    Args:
        centroids, shots, unlabelled: as for :func:`refine`; U may be 0.
        queries: (..., Q, D).
        references: (..., N, D) or (N, D), learned, one per class.
        iterations: refinements.
        distractor_reference: (D,), learned; gives TACdap, where one more cluster, which starts at the mean of all
            unlabelled points, takes those that belong to no class. It shapes the clustering space only: queries are
            classified in the space of the N real classes.
        scale: multiplies the squared distances in the soft labels, or the cosines.
        reference_bias: (..., N) or (N,), learned, one per reference: the logits of queries become
            2 (phi . Px + b) - |P phi|^2 - |Px|^2. Soft labels are by the class means, which have none.
        distractor_offset: (...), added to the squared distances of the distractor cluster in the soft labels.
        cosine: label unlabelled points by their cosines with the class means in M, not by squared distances.
        grad_through_projection: if False, every M is a constant in the backward pass.
        grad_through_soft_labels: if False, the soft labels are constants in the backward pass, except to the distractor
            reference, which has no other way to learn (and none at all if every M is a constant).
        keep_steps: if False, the result has no soft labels (0, ..., U, N) and only the last centroids (1, ..., N, D),
            and a million unlabelled points need no more memory than a thousand.

    Example:
        >>> c = torch.tensor([[4.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0]])
        >>> tac(c, 1, c.repeat(3, 1), c, torch.eye(4)[:2], iterations=2).logits.argmax(-1)[-1]
        tensor([0, 1])
    """
    references, distractor = references.expand_as(centroids), None
    if distractor_reference is not None and unlabelled.shape[-2] > 0:
        centroids, shots, distractor = _distractor_pair(centroids, shots, unlabelled, distractor_reference)
    inputs = (centroids, unlabelled, queries, references, distractor)
    learning = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    task_logits: TaskLogits | SpanLogits
    if learning or cosine or not SpanLogits.suits(references):
        task_logits = TaskLogits(references, distractor, cosine, grad_through_projection, grad_through_soft_labels)
    else:
        task_logits = SpanLogits(references, distractor, modified_references)
    points = unlabelled if grad_through_soft_labels else unlabelled.detach()
    label: Callable[[LinearLogits], Tensor | SoftSums]
    label = partial(_labels_of if learning or keep_steps else streamed_sums, points, scale=scale)
    if distractor is not None and distractor_offset is not None:
        label = partial(_label_with_offset, label, distractor_offset)
    result = _cluster(centroids, shots, unlabelled, queries, iterations, task_logits, label)
    if reference_bias is not None:
        result = result._replace(logits=result.logits + 2 * reference_bias.unsqueeze(-2))
    return result if keep_steps else result._replace(probabilities=result[1][:0], centroids=result[2][-1:])


class TaskLogits:
    """From class means to the logits of queries, by the references, and of unlabelled points, by the means.

    ``references`` are (..., N, D); with a ``distractor`` reference (..., 1, D) there is one more mean, for distractors:
    the pair shapes the space that unlabelled points are clustered in, not the one that queries are classified in.
    """

    def __init__(
        self, references: Tensor, distractor: Tensor | None, cosine: bool, grad_space: bool, grad_labels: bool
    ) -> None:
        self.references, self.cosine = references, cosine
        self.grad_space, self.grad_labels = grad_space, grad_labels  # whether each is differentiated through
        self.target_directions = unit(modified_references(references))  # that the projection aligns class means with
        self.cluster_directions = None
        if distractor is not None:
            pairs = torch.cat([self._constant(references), distractor], dim=-2)
            self.cluster_directions = unit(modified_references(pairs))

    def __call__(self, means: Tensor) -> tuple[LinearLogits, LinearLogits]:
        classification = self._space(means[..., : self.references.shape[-2], :], self.target_directions)
        means = self._constant(means)
        if self.cluster_directions is None:
            clustering = self._constant(classification)
        else:
            clustering = self._space(means, self.cluster_directions)
        by_mean = _cosine_logits(means, clustering) if self.cosine else _distance_logits(means, clustering)
        return _distance_logits(self.references, classification), by_mean

    def _space(self, means: Tensor, directions: Tensor) -> Tensor:
        """The basis (..., D, N) of what M lacks: the errors between target directions and unit class means."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.grad_space):
            return null_basis(directions - unit(means))

    def _constant(self, tensor: Tensor) -> Tensor:
        return tensor if self.grad_labels else tensor.detach()


def _cluster(
    centroids: Tensor, shots: int | Tensor, unlabelled: Tensor, queries: Tensor, iterations: int,
    task_logits: TaskLogits | SpanLogits, label: Callable[[LinearLogits], Tensor | SoftSums],
) -> TacResult:  # fmt: skip
    """The steps of :func:`tac`: ``task_logits`` of the means let ``label`` give soft labels, which give new means."""
    query_logits, probabilities = [], []

    def label_softly(means: Tensor) -> Tensor | SoftSums:
        by_reference, by_mean = task_logits(means)
        query_logits.append(by_reference)
        soft = label(by_mean)
        if not isinstance(soft, SoftSums):
            probabilities.append(soft)
        return soft

    history = list(refinements(centroids, shots, unlabelled, iterations, label_softly))
    query_logits.append(task_logits(history[-1])[0])
    # Queries last, for all refinements in one product: they are read once.
    weights, offsets = (torch.cat(parts, dim=-2) for parts in zip(*(step[:2] for step in query_logits), strict=True))
    logits = torch.stack((weights @ queries.mT - offsets).chunk(iterations + 1, dim=-2)).mT
    none = unlabelled.new_zeros((0, *unlabelled.shape[:-1], centroids.shape[-2]))
    return TacResult(logits, torch.stack(probabilities) if probabilities else none, torch.stack(history))


def _distractor_pair(
    centroids: Tensor, shots: int | Tensor, unlabelled: Tensor, reference: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Class means and shots with those of one more cluster, for distractors, and its reference (..., 1, D)."""
    # The cluster starts at the mean of all unlabelled points, and no labelled point stands behind it.
    means = torch.cat([centroids, unlabelled.mean(-2, keepdim=True)], dim=-2)
    weight = torch.nn.functional.pad(_column(shots, centroids).squeeze(-1), (0, 1))
    return means, weight, reference.expand_as(means[..., :1, :])


def _distance_logits(targets: Tensor, basis: Tensor | None) -> LinearLogits:
    """Negative squared distances to targets (..., T, D) in M, up to a constant per point."""
    # Around the targets' mean m: |P(z - m) - P(w - m)|^2 up to |P(z - m)|^2. A mean that all vectors share, which real
    # embeddings have, would otherwise eat the digits of the differences. The points themselves need not be shifted.
    mean = targets.mean(-2, keepdim=True)
    projected = project(targets - mean, basis)
    return LinearLogits(2 * projected, (projected * (projected + 2 * mean)).sum(-1, keepdim=True))


def _cosine_logits(targets: Tensor, basis: Tensor | None) -> LinearLogits:
    """Cosines with targets (..., T, D) in M."""
    directions = unit(project(targets, basis))
    return LinearLogits(directions, torch.zeros_like(directions[..., :1]), cosine=True, basis=basis)


def _labels_of(points: Tensor, logits: LinearLogits, scale: float | Tensor) -> Tensor:
    """Soft labels (..., U, N) of points (..., U, D); computed classes first, which is the order in memory."""
    return torch.softmax(scale * logits(points), dim=-2).mT


def _label_with_offset(
    label: Callable[[LinearLogits], Tensor | SoftSums], offset: Tensor, logits: LinearLogits
) -> Tensor | SoftSums:
    """What ``label`` gives if the squared distances of the last target grow by ``offset`` (...)."""
    last = torch.zeros_like(logits.offsets)
    last[..., -1, 0] = offset
    return label(logits._replace(offsets=logits.offsets + last))


def _column(shots: int | Tensor, centroids: Tensor) -> Tensor:
    """How many points stand behind each mean, beside the means (..., N, D): (..., N, 1)."""
    weight = torch.as_tensor(shots, dtype=centroids.dtype, device=centroids.device)
    return weight.expand(centroids.shape[:-1]).unsqueeze(-1)


__all__ = ["error_vectors", "modified_references", "null_basis", "projected_logits", "projected_sqdist", "refine",
           "refinements", "soft_labels", "tac"]  # fmt: skip
