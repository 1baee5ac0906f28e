"""Linear algebra of a few vectors in many dimensions: thin bases, projections, logits that are linear in a point."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SAFE = 128  # rows up to which batches of systems are solved at once on a processor
KEPT = 0.25  # a difference of squares is trusted if at least this share of them is left: at most two bits are lost


def solve(systems: Tensor, right: Tensor) -> Tensor:
    """`torch.linalg.solve` of systems (..., n, n) and right sides (..., n, k) of the same batch."""
    return _one_by_one_if_large(torch.linalg.solve, systems, right)


def inverse(systems: Tensor) -> Tensor:
    """`torch.linalg.inv` of systems (..., n, n)."""
    return _one_by_one_if_large(torch.linalg.inv, systems)


def _one_by_one_if_large(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """On a processor with several threads, MKL's batches of large systems fail now and then (pytorch#142815)."""
    systems = operands[0]
    if systems.dim() == 2 or systems.shape[-1] <= SAFE or systems.device.type != "cpu" or not systems.numel():
        return function(*operands)
    parts = zip(*(operand.flatten(0, -3).unbind() for operand in operands), strict=True)
    return torch.stack([function(*part) for part in parts]).reshape(operands[-1].shape)


class LinearLogits(NamedTuple):
    """Logits of points for T targets that are linear in the point z: ``weights @ z - offsets``.

    Attributes:
        weights: (..., T, D).
        offsets: (..., T, 1).
        cosine: whether the logits are divided by the length of the point in M, so that they are cosines.
        basis: (..., D, N) of the directions that M lacks, needed for that length; None if it lacks none.
    """

    weights: Tensor
    offsets: Tensor
    cosine: bool = False
    basis: Tensor | None = None

    def __call__(self, points: Tensor) -> Tensor:
        """The logits of points (..., P, D), targets first: (..., T, P)."""
        logits = self.weights @ points.mT - self.offsets
        if not self.cosine:
            return logits
        length = projected_length(points, self.basis).unsqueeze(-2)
        return logits / torch.where(length > 0, length, torch.ones_like(length))

    def map(self, function: Callable[[Tensor], Tensor]) -> LinearLogits:
        """The same with ``function`` applied to each tensor."""
        basis = None if self.basis is None else function(self.basis)
        return LinearLogits(function(self.weights), function(self.offsets), self.cosine, basis)


def project(vectors: Tensor, basis: Tensor | None) -> Tensor:
    """Project onto M: vectors (..., P, D) minus their part in the span of the basis (..., D, N)."""
    return vectors if basis is None else vectors - (vectors @ basis) @ basis.mT


def projected_length(vectors: Tensor, basis: Tensor | None) -> Tensor:
    """Lengths in M of vectors (..., P, D): -> (..., P)."""
    if basis is not None and not (torch.is_grad_enabled() and (vectors.requires_grad or basis.requires_grad)):
        # |Pz|^2 = |z|^2 - |Q^T z|^2: one product, where spelling out Pz takes two and a copy of all vectors.
        whole: Tensor = torch.linalg.vector_norm(vectors, dim=-1).square()
        squares = whole - (basis.mT @ vectors.mT).square().sum(-2)
        if not (squares < KEPT * whole).any():
            return squares.sqrt()
    length: Tensor = torch.linalg.vector_norm(project(vectors, basis), dim=-1)
    return length


def pairwise_squares(points: Tensor, targets: Tensor) -> Tensor:
    """Squared distances (..., P, D), (..., T, D) -> (..., P, T), never negative; without gradients."""
    sizes = points.square().sum(-1).unsqueeze(-1) + targets.square().sum(-1).unsqueeze(-2)
    squares = sizes - 2 * (targets @ points.mT).mT
    near = squares < KEPT * sizes  # pairs that are nearer to each other than to the origin, for which digits cancel
    if 4 * int(near.sum()) > near.numel():
        return torch.cdist(points, targets, compute_mode="donot_use_mm_for_euclid_dist").square()
    *batch, point, target = near.nonzero(as_tuple=True)
    of_point, of_target = (*batch, point), (*batch, target)
    squares[near] = (points[of_point] - targets[of_target]).square().sum(-1)
    return squares


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; a zero vector stays zero and has a finite gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


def thin_svd(errors: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal basis Q (..., D, N) of the rows of E (..., N, D), and W (..., N, N) with Q = E^T W.

    Missing directions are zero columns.

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
        weights = torch.nn.functional.pad(_inverse(left, sigma, tolerance), (0, max(0, ways - dim)))
    else:
        weights = inverse_roots(wide @ wide.mT, tolerance)
    basis = (weights.mT @ wide).mT  # in this order ten times as fast as wide.mT @ weights
    if errors.dtype == torch.float64 or not gram_suffices(tolerance):  # one Newton-Schulz step squares the error away
        correction = 1.5 * torch.eye(ways, dtype=wide.dtype, device=device) - 0.5 * (basis.mT @ basis)
        basis, weights = (correction @ basis.mT).mT, weights @ correction
    return basis.to(errors), weights.to(errors)


def gram_suffices(tolerance: float) -> bool:
    """Whether float32 vectors keep their digits on the way through a Gram matrix in float64.

    It gives sigma with an error of eps64 * (sigma_max / sigma)^2, at most eps64 / tolerance^2: too much if there are
    few dimensions, where small singular values count.
    """
    return torch.finfo(torch.float64).eps <= torch.finfo(torch.float32).eps / 2 * tolerance**2


def inverse_roots(gram: Tensor, tolerance: float) -> Tensor:
    """W (..., N, N) with W W^T the pseudo-inverse of a Gram matrix (..., N, N); missing directions are zero columns."""
    eigenvalues, vectors = torch.linalg.eigh(gram)
    return _inverse(vectors, eigenvalues.clamp_min(0).sqrt(), tolerance)


def _inverse(left: Tensor, sigma: Tensor, tolerance: float) -> Tensor:
    """Singular vectors (..., N, K) over their values (..., K), zero where a value is too small to be told from none."""
    kept = sigma > tolerance * sigma.amax(-1, keepdim=True)
    return left * torch.where(kept, 1 / sigma, torch.zeros_like(sigma)).unsqueeze(-2)
