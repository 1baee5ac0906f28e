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

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._linalg import gram_suffices, inverse_roots, thin_svd
from .errors import HandfulError

STRETCH = 1 << 20  # numbers of unlabelled points that are looked at together: 4 MiB, at home in the cache


class TacResult(NamedTuple):
    """What :func:`tac` returns.

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
        basis, weights = thin_svd(errors.detach())
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
    return _heights(_plane(targets, basis), points).mT


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
    weight = _column(shots, centroids)
    total = weight * centroids + probabilities.mT @ unlabelled
    return _mean(total, weight + probabilities.sum(-2).unsqueeze(-1), centroids)


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
    cosine: bool = False,
    grad_through_projection: bool = True,
    grad_through_soft_labels: bool = True,
    keep_steps: bool = True,
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
        scale: multiplies the squared distances in the soft labels, or the cosines.
        cosine: label the unlabelled points by their cosines with the class means in M instead of by squared distances.
        grad_through_projection: if False, every M is a constant in the backward pass.
        grad_through_soft_labels: if False, the soft labels are constants in the backward pass, except to the distractor
            reference, which has no other way to learn (and none at all if every M is a constant).
        keep_steps: if False, the result has no soft labels (0, ..., U, N) and only the last centroids (1, ..., N, D),
            and a million unlabelled points need no more memory than a thousand.

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
    labelled, weight, distractor = centroids, _column(shots, centroids), None
    if distractor_reference is not None and unlabelled.shape[-2] > 0:
        # One more pair: it starts at the mean of all unlabelled points, and no labelled point stands behind it.
        labelled = torch.cat([centroids, unlabelled.mean(-2, keepdim=True)], dim=-2)
        weight = torch.cat([weight, torch.zeros_like(weight[..., :1, :])], dim=-2)
        distractor = distractor_reference.expand_as(labelled[..., :1, :])

    def constant(tensor: Tensor) -> Tensor:
        return tensor if grad_through_soft_labels else tensor.detach()

    inputs = (labelled, unlabelled, queries, references, distractor)
    learning = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    planes: _Planes | _SpanPlanes
    if learning or cosine or not _SpanPlanes.suits(references):
        planes = _Planes(references, distractor, cosine, grad_through_projection, grad_through_soft_labels)
    else:
        planes = _SpanPlanes(references, distractor)
    means, query_planes, probabilities, history = labelled, [], [], []
    for iteration in range(iterations + 1):
        query_plane, cluster_plane = planes(means)
        query_planes.append(query_plane)
        if keep_steps or iteration == iterations:
            history.append(means)
        if iteration == iterations:
            break
        if learning or keep_steps:
            soft = torch.softmax(scale * _heights(cluster_plane, constant(unlabelled)), dim=-2)  # (..., N, U)
            mass, total = soft.sum(-1, keepdim=True), soft @ unlabelled
            if keep_steps:
                probabilities.append(soft.mT)
        else:
            mass, total = _streamed_sums(unlabelled, cluster_plane, scale)
        means = _mean(weight * labelled + total, weight + mass, labelled)
    # Queries last, for all refinements in one product: they are read once.
    slopes, offsets = (torch.cat(parts, dim=-2) for parts in zip(*(plane[:2] for plane in query_planes), strict=True))
    logits = slopes @ queries.mT - offsets  # (..., (iterations + 1) N, Q)
    none = unlabelled.new_zeros((0, *unlabelled.shape[:-1], labelled.shape[-2]))
    return TacResult(
        logits=logits.reshape(*logits.shape[:-2], iterations + 1, ways, logits.shape[-1]).movedim(-3, 0).mT,
        probabilities=torch.stack(probabilities) if probabilities else none,
        centroids=torch.stack(history),
    )


class Plane(NamedTuple):
    """Logits as functions of the point: that of z for a target is slope . z - offset.

    Attributes:
        slopes: (..., T, D).
        offsets: (..., T, 1).
        basis: (..., D, N) if the logits are to be divided by the length of the point in M, as for cosines.
    """

    slopes: Tensor
    offsets: Tensor
    basis: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Plane:
        basis = None if self.basis is None else function(self.basis)
        return Plane(function(self.slopes), function(self.offsets), basis)


def _heights(plane: Plane, points: Tensor) -> Tensor:
    """The logits of points (..., P, D): (..., T, P)."""
    logits = plane.slopes @ points.mT - plane.offsets
    if plane.basis is None:
        return logits
    length = torch.linalg.vector_norm(_project(points, plane.basis), dim=-1).unsqueeze(-2)
    return logits / torch.where(length > 0, length, torch.ones_like(length))


class _Planes:
    """From class means to the logits of queries (by the references) and of unlabelled points (by the means).

    ``references`` are (..., N, D); with a ``distractor`` reference (..., 1, D) there is one more mean, for distractors:
    the pair shapes the space that unlabelled points are clustered in, not the one that queries are classified in.
    """

    def __init__(
        self,
        references: Tensor,
        distractor: Tensor | None,
        cosine: bool,
        through_projection: bool,
        through_soft_labels: bool,
    ) -> None:
        self.references, self.cosine = references, cosine
        self.through_projection, self.through_soft_labels = through_projection, through_soft_labels
        self.pulls = _unit(modified_references(references))  # where each class mean is to be turned
        self.cluster_pulls = None
        if distractor is not None:
            self.cluster_pulls = _unit(modified_references(torch.cat([self._constant(references), distractor], dim=-2)))

    def __call__(self, means: Tensor) -> tuple[Plane, Plane]:
        classification = self._space(means[..., : self.pulls.shape[-2], :], self.pulls)
        means = self._constant(means)
        if self.cluster_pulls is None:
            clustering = self._constant(classification)
        else:
            clustering = self._space(means, self.cluster_pulls)
        by_reference = _plane(self.references, classification)
        if not self.cosine:
            return by_reference, _plane(means, clustering)
        directions = _unit(_project(means, clustering))
        return by_reference, Plane(directions, torch.zeros_like(directions[..., :1]), clustering)

    def _space(self, means: Tensor, pulls: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.through_projection):
            return null_basis(pulls - _unit(means))

    def _constant(self, tensor: Tensor) -> Tensor:
        return tensor if self.through_soft_labels else tensor.detach()


class _SpanPlanes:
    """The same without gradients, and cheaper for many small episodes.

    All vectors but the points lie in the span of the P references and P means. With T these 2P rows, every error and
    every projected target is a combination a T, and the product of two of them is a G b^T, with the Gram matrix
    G = T T^T. So one pass over T gives G, small matrices do the rest, and one more pass turns combinations into slopes.
    In float64, for the reason given in :func:`thin_svd`.
    """

    @staticmethod
    def suits(references: Tensor) -> bool:
        tolerance = torch.finfo(torch.float32).eps * max(references.shape[-2:])
        return references.dtype == torch.float32 and references.device.type != "mps" and gram_suffices(tolerance)

    def __init__(self, references: Tensor, distractor: Tensor | None) -> None:
        ways = references.shape[-2]
        references = references if distractor is None else torch.cat([references, distractor], dim=-2)
        *batch, pairs, dim = references.shape
        self.ways, self.pairs = ways, pairs
        self.rows = references.new_empty((*batch, 2 * pairs, dim), dtype=torch.float64)  # T
        self.rows[..., :pairs, :] = references
        self.fixed = self.rows[..., :pairs, :] @ self.rows[..., :pairs, :].mT
        eye = torch.eye(2 * pairs, dtype=torch.float64, device=references.device)
        self.pulls = {}
        for count in {ways, pairs}:
            modified = modified_references(eye[:count, :count])  # as combinations of the references
            length = torch.linalg.vector_norm(modified @ self.rows[..., :count, :], dim=-1, keepdim=True)
            self.pulls[count] = modified / torch.where(length > 0, length, 1.0)
        # The targets, references and then means, as combinations of T around the mean of each kind.
        self.centres = torch.cat([eye[:ways].mean(0).expand(ways, -1), eye[pairs:].mean(0).expand(pairs, -1)])
        self.centred = torch.cat([eye[:ways], eye[pairs:]]) - self.centres

    def __call__(self, means: Tensor) -> tuple[Plane, Plane]:
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
        slopes = (2 * projected @ self.rows).to(means)
        both = Plane(slopes, offsets)
        return both.map(lambda tensor: tensor[..., :ways, :]), both.map(lambda tensor: tensor[..., ways:, :])

    def _project(self, vectors: Tensor, gram: Tensor, count: int) -> Tensor:
        """Combinations of T (V, 2P), projected onto the null space of the errors of the first ``count`` pairs."""
        length = gram.diagonal(dim1=-2, dim2=-1)[..., self.pairs : self.pairs + count].sqrt()
        errors = gram.new_zeros((*gram.shape[:-2], count, 2 * self.pairs))
        errors[..., :count] = self.pulls[count]
        errors.diagonal(self.pairs, dim1=-2, dim2=-1)[...] = -1 / torch.where(length > 0, length, 1.0)
        products = errors @ gram  # of the errors with T
        roots = inverse_roots(products @ errors.mT, torch.finfo(torch.float32).eps * max(count, self.rows.shape[-1]))
        return vectors - ((vectors @ products.mT) @ (roots @ roots.mT)) @ errors


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; a zero vector stays zero and has a finite gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


def _column(shots: int | Tensor, centroids: Tensor) -> Tensor:
    """How many points stand behind each mean, beside the means (..., N, D): (..., N, 1)."""
    weight = torch.as_tensor(shots, dtype=centroids.dtype, device=centroids.device)
    return weight.expand(centroids.shape[:-1]).unsqueeze(-1)


def _mean(total: Tensor, mass: Tensor, fallback: Tensor) -> Tensor:
    """total (..., N, D) / mass (..., N, 1), and the fallback (..., N, D) where there is no mass."""
    empty = mass <= 0
    if not empty.any():
        return total / mass
    return torch.where(empty, fallback, total / torch.where(empty, torch.ones_like(mass), mass))


def _streamed_sums(points: Tensor, plane: Plane, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """Mass (..., N, 1) and sum (..., N, D) of softly labelled points (..., U, D), a stretch of them at a time.

    A stretch is labelled and added up while it is in the processor's cache: any number of points takes the same extra
    memory, and each is fetched once. Classes by points, not points by classes: both products then run along the memory.
    """
    batch, (amount, dim) = plane.slopes.shape[:-2], points.shape[-2:]

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(*batch, -1, -1).reshape(batch.numel(), *tensor.shape[-2:])

    points, plane = flat(points), plane.map(flat)
    mass, total = torch.zeros_like(plane.offsets), torch.zeros_like(plane.slopes)
    together, length = max(1, STRETCH // max(1, amount * dim)), max(1, STRETCH // dim)
    for first in range(0, len(points), together):
        some = slice(first, first + together)
        here = plane.map(operator.itemgetter(some))
        for part in torch.split(points[some], length, dim=-2):
            soft = torch.softmax(scale * _heights(here, part), dim=-2)
            mass[some] += soft.sum(-1, keepdim=True)
            total[some].baddbmm_(soft, part)
    return mass.reshape(*batch, *mass.shape[-2:]), total.reshape(*batch, *total.shape[-2:])


def _project(vectors: Tensor, basis: Tensor | None) -> Tensor:
    """Onto M: vectors (..., P, D) minus their part in the span of the basis (..., D, N)."""
    return vectors if basis is None else vectors - (vectors @ basis) @ basis.mT


def _plane(targets: Tensor, basis: Tensor | None) -> Plane:
    """The logits of points for targets (..., T, D) in M, as a plane over the points."""
    # Around the targets' mean m: |P(z - m) - P(w - m)|^2 up to |P(z - m)|^2. A mean that all vectors share, which real
    # embeddings have, would otherwise eat the digits of the differences. The points themselves need not be shifted.
    mean = targets.mean(-2, keepdim=True)
    projected = _project(targets - mean, basis)
    return Plane(2 * projected, (projected * (projected + 2 * mean)).sum(-1, keepdim=True))
