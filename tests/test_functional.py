"""The formulas against their definitions: an explicit SVD null space, finite differences, symmetry."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from handful import HandfulError, _spans
from handful import functional as F

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def explicit_null_space(errors: Tensor) -> Tensor:
    """(N, D) -> (D, D - rank): the columns of M, by a full SVD in float64 with NumPy's rule for the rank."""
    _, sigma, vh = torch.linalg.svd(errors.double(), full_matrices=True)
    tolerance = torch.finfo(errors.dtype).eps * max(errors.shape) * sigma.max()
    return vh[int((sigma > tolerance).sum()) :].mT


def explicit_sqdist(points: Tensor, targets: Tensor, errors: Tensor) -> Tensor:
    difference = points.double().unsqueeze(-2) - targets.double().unsqueeze(-3)
    return (difference @ explicit_null_space(errors)).square().sum(-1)


DEGENERATE = ("plain", "common mean", "duplicate classes", "parallel", "zero centroid")


def make_case(ways: int, dim: int, dtype: torch.dtype, kind: str, size: float, seed: int) -> tuple[Tensor, ...]:
    """Centroids, references, points and targets, with the degenerate cases that real episodes can bring."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=generator, dtype=dtype)

    centroids, references = normal(ways) * size, normal(ways)
    match kind:
        case "common mean":
            centroids = centroids + 13
        case "duplicate classes" if ways > 1:
            centroids[1], references[1] = centroids[0], references[0]
        case "parallel" if ways > 1:  # the first centroid lies on its modified reference: its error is rounding noise
            centroids[0] = F.modified_references(references)[0] * 1.7
        case "zero centroid":
            centroids[0] = 0
    return centroids, references, normal(7), normal(4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, ...]:
    return make_case(
        draw(st.integers(1, 20)),
        draw(st.sampled_from([8, 9, 16, 20, 21, 64, 333, 1600])),
        draw(st.sampled_from([torch.float32, torch.float64])),
        draw(st.sampled_from(DEGENERATE)),
        draw(st.sampled_from([0.1, 1.0, 15.0])),
        draw(st.integers(0, 2**31)),
    )


def relative_difference(case: tuple[Tensor, ...]) -> float:
    """Largest difference to the explicit null space, relative to the distance before projection.

    Relative to that one: where M has few dimensions left, a projected distance can be next to nothing, and float32
    cannot know it better than to its digits of what was there before.
    """
    centroids, references, points, targets = case
    errors = F.error_vectors(centroids, references)
    ours = F.projected_sqdist(points, targets, F.null_basis(errors))
    assert (ours >= 0).all()
    full = torch.cdist(points.double(), targets.double()).square()
    return float(((ours.double() - explicit_sqdist(points, targets, errors)).abs() / full).max())


@settings(max_examples=200)
@given(cases())
def test_projected_distances_equal_those_in_an_explicit_svd_null_space(case):
    assert relative_difference(case) <= TOLERANCE[case[0].dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_thousand_cases_against_an_explicit_svd(dtype):
    generator = torch.Generator().manual_seed(1)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    worst = dict.fromkeys(DEGENERATE, 0.0)
    for index in range(1000):
        kind, dim = DEGENERATE[index % 5], pick(8, 1600) if index % 4 else pick(8, 24)
        case = make_case(pick(1, 20), dim, dtype, kind, (0.1, 1.0, 15.0)[index % 3], seed=index)
        worst[kind] = max(worst[kind], relative_difference(case))
    print({kind: f"{value:.1e}" for kind, value in worst.items()})
    assert max(worst.values()) <= TOLERANCE[dtype]


@settings(max_examples=100)
@given(cases())
def test_basis_is_orthonormal_and_contains_the_errors(case):
    centroids, references, _, _ = case
    errors = F.error_vectors(centroids, references)
    basis = F.null_basis(errors)
    rank = errors.shape[1] - explicit_null_space(errors).shape[1]
    gram = (basis.double().mT @ basis.double()).diagonal()
    tolerance = 10 * TOLERANCE[errors.dtype]
    assert int((gram > 0.5).sum()) == rank, "one unit column per independent error, the others zero"
    torch.testing.assert_close(basis.mT @ basis, torch.diag((gram > 0.5).to(errors)), atol=tolerance, rtol=0)
    left_over = errors - (errors @ basis) @ basis.mT
    assert left_over.norm(dim=-1).max() <= torch.finfo(errors.dtype).eps * 8 * max(errors.shape)


def test_modified_reference_is_itself_minus_the_mean_of_the_others():
    references = torch.randn(4, 6, dtype=torch.float64)
    expected = references[2] - (references[0] + references[1] + references[3]) / 3
    torch.testing.assert_close(F.modified_references(references)[2], expected)
    torch.testing.assert_close(F.modified_references(references[:1]), references[:1])


def test_class_means_align_with_references_in_the_projection_space():
    centroids, references = torch.randn(5, 40).double(), torch.randn(5, 40).double()
    modified = F.modified_references(references)
    basis = F.null_basis(F.error_vectors(centroids, references))
    unit = [vectors / vectors.norm(dim=-1, keepdim=True) for vectors in (centroids, modified)]
    assert F.projected_sqdist(*unit, basis).diagonal().max() < 1e-20


def test_logits_are_distances_up_to_a_constant_per_point():
    points, targets, errors = torch.randn(2, 9, 30), torch.randn(2, 5, 30), torch.randn(2, 5, 30)
    basis = F.null_basis(errors)
    sums = F.projected_logits(points, targets, basis) + F.projected_sqdist(points, targets, basis)
    torch.testing.assert_close(sums, sums[..., :1].expand_as(sums), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 5.0, 50.0])
def test_a_mean_that_all_vectors_share_does_not_eat_the_digits(offset):
    generator = torch.Generator().manual_seed(0)
    points, targets = (torch.randn(n, 1600, generator=generator, dtype=torch.float64) / 4 for n in (20, 5))
    exact = torch.softmax(-torch.cdist(points, targets).square(), -1)
    ours = torch.softmax(F.projected_logits((points + offset).float(), (targets + offset).float(), None), -1)
    assert (ours - exact).abs().max() < 0.02


def test_nothing_of_size_d_by_d_is_needed():
    """D = 200,000: a D x D matrix would take 160 GB."""
    result = F.tac(torch.randn(3, 200_000), 1, torch.randn(6, 200_000), torch.randn(2, 200_000),
                   torch.randn(3, 200_000), iterations=2)  # fmt: skip
    assert result.logits.shape == (3, 2, 3)


def test_refine_is_the_weighted_mean():
    centroids, unlabelled = torch.tensor([[0.0, 0.0], [10.0, 0.0]]), torch.tensor([[3.0, 0.0], [7.0, 3.0]])
    probabilities = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    expected = torch.tensor([[(3 + 3.5) / 3.5, 1.5 / 3.5], [(10 + 3.5) / 1.5, 1.5 / 1.5]])
    shots = torch.tensor([2, 1])
    torch.testing.assert_close(F.refine(centroids, shots, unlabelled, probabilities), expected)


def test_refine_keeps_a_centroid_that_nothing_belongs_to():
    centroids = torch.randn(2, 3)
    refined = F.refine(centroids, torch.tensor([0, 1]), torch.randn(4, 3), torch.zeros(4, 2))
    torch.testing.assert_close(refined, centroids)


def test_refinements_start_at_the_labelled_means_and_always_refine_those():
    centroids, unlabelled = torch.randn(2, 3), torch.randn(4, 3)
    seen = []

    def label_softly(means):
        seen.append(means)
        return F.soft_labels(unlabelled, means, None)

    steps = list(F.refinements(centroids, 2, unlabelled, 2, label_softly))
    assert len(steps) == 3 and len(seen) == 2, "the last means are not clustered with again"
    torch.testing.assert_close(steps[0], centroids)
    for before, after in itertools.pairwise(steps):
        soft = torch.softmax(-torch.cdist(unlabelled, before).square(), -1)
        torch.testing.assert_close(after, (2 * centroids + soft.mT @ unlabelled) / (2 + soft.sum(0).unsqueeze(-1)))


def episode(batch=(), ways=5, dim=24, unlabelled=11, queries=7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((*batch, ways, dim), (*batch, unlabelled, dim), (*batch, queries, dim), (ways, dim), (dim,))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def test_tac_step_by_step():
    """Against the paper's procedure, written with the explicit null space."""
    centroids, unlabelled, queries, references, _ = episode()
    result = F.tac(centroids, 3, unlabelled, queries, references, iterations=2, scale=0.3)
    means = centroids
    for step in range(3):
        errors = F.error_vectors(means, references)
        expected = torch.softmax(-explicit_sqdist(queries, references, errors), -1)
        torch.testing.assert_close(torch.softmax(result.logits[step], -1), expected)
        torch.testing.assert_close(result.centroids[step], means)
        if step < 2:
            soft = torch.softmax(-0.3 * explicit_sqdist(unlabelled, means, errors), -1)
            torch.testing.assert_close(result.probabilities[step], soft)
            means = (3 * centroids + soft.mT @ unlabelled) / (3 + soft.sum(0).unsqueeze(-1))


def test_cosine_clustering_step_by_step():
    """Soft labels by the cosines of points and class means in the explicit null space; all else as before."""
    centroids, unlabelled, queries, references, _ = episode()
    result = F.tac(centroids, 3, unlabelled, queries, references, iterations=2, scale=6.0, cosine=True)
    means = centroids
    for step in range(2):
        errors = F.error_vectors(means, references)
        points, targets = (vectors @ explicit_null_space(errors) for vectors in (unlabelled, means))
        cosines = torch.nn.functional.cosine_similarity(points.unsqueeze(1), targets.unsqueeze(0), dim=-1)
        soft = torch.softmax(6 * cosines, -1)
        torch.testing.assert_close(result.probabilities[step], soft)
        means = (3 * centroids + soft.mT @ unlabelled) / (3 + soft.sum(0).unsqueeze(-1))
    errors = F.error_vectors(means, references)
    expected = torch.softmax(-explicit_sqdist(queries, references, errors), -1)
    torch.testing.assert_close(torch.softmax(result.logits[2], -1), expected)


def test_cosine_clustering_does_not_mind_how_long_a_point_is():
    centroids, unlabelled, queries, references, extra = episode()
    longer = unlabelled * torch.linspace(0.1, 10, 11, dtype=unlabelled.dtype).unsqueeze(-1)
    short, long = (
        F.tac(centroids, 1, points, queries, references, 1, cosine=True, scale=6.0) for points in (unlabelled, longer)
    )
    torch.testing.assert_close(short.probabilities, long.probabilities)
    zero = F.tac(centroids, 1, unlabelled * 0, queries, references, 2, extra, cosine=True)
    assert zero.logits.isfinite().all()


def test_tacdap_step_by_step():
    """N + 1 pairs span the clustering space, N pairs the classification space; no support behind the last mean."""
    centroids, unlabelled, queries, references, extra = episode()
    result = F.tac(centroids, 2, unlabelled, queries, references, 1, distractor_reference=extra)
    means = torch.cat([centroids, unlabelled.mean(0, keepdim=True)])
    all_errors = F.error_vectors(means, torch.cat([references, extra[None]]))
    soft = torch.softmax(-explicit_sqdist(unlabelled, means, all_errors), -1)
    torch.testing.assert_close(result.probabilities[0], soft)
    refined = (2 * centroids + soft[:, :5].mT @ unlabelled) / (2 + soft[:, :5].sum(0).unsqueeze(-1))
    torch.testing.assert_close(result.centroids[1][:5], refined)
    torch.testing.assert_close(result.centroids[1][5], soft[:, 5] @ unlabelled / soft[:, 5].sum())
    expected = torch.softmax(-explicit_sqdist(queries, references, F.error_vectors(refined, references)), -1)
    torch.testing.assert_close(torch.softmax(result.logits[1], -1), expected)


def test_entry_0_is_tapnet_whatever_the_unlabelled_set():
    centroids, unlabelled, queries, references, extra = episode()
    tapnet = F.projected_logits(queries, references, F.null_basis(F.error_vectors(centroids, references)))
    for options in ({}, {"distractor_reference": extra}):
        torch.testing.assert_close(F.tac(centroids, 1, unlabelled, queries, references, 3, **options).logits[0], tapnet)


def test_soft_labels_sum_to_one_even_for_far_points():
    centroids, unlabelled, queries, references, extra = episode(dtype=torch.float32)
    result = F.tac(centroids, 1, unlabelled * 1e4, queries, references, 2, distractor_reference=extra)
    torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(2, 11))
    assert result.logits.isfinite().all()


def test_no_unlabelled_points_change_nothing():
    centroids, unlabelled, queries, references, extra = episode()
    result = F.tac(centroids, 1, unlabelled[:0], queries, references, 3, distractor_reference=extra)
    torch.testing.assert_close(result.logits, result.logits[:1].expand_as(result.logits))


def test_batched_equals_one_by_one():
    centroids, unlabelled, queries, references, extra = episode(batch=(2, 3))
    batched = F.tac(centroids, 1, unlabelled, queries, references, 2, extra)
    single = F.tac(centroids[1, 2], 1, unlabelled[1, 2], queries[1, 2], references, 2, extra)
    for name in single._fields:
        torch.testing.assert_close(getattr(batched, name)[:, 1, 2], getattr(single, name))


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_permuting_classes_queries_or_unlabelled_points_permutes_the_answer(seed, distractor_aware, cosine):
    centroids, unlabelled, queries, references, extra = episode(seed=seed)
    options = {"distractor_reference": extra if distractor_aware else None, "cosine": cosine}
    plain = F.tac(centroids, 1, unlabelled, queries, references, 3, **options)
    generator = torch.Generator().manual_seed(seed)
    classes, rows, points = (torch.randperm(n, generator=generator) for n in (5, 7, 11))
    permuted = F.tac(centroids[classes], 1, unlabelled[points], queries[rows], references[classes], 3, **options)
    torch.testing.assert_close(permuted.logits, plain.logits[:, rows][:, :, classes])
    columns = torch.cat([classes, torch.tensor([5])]) if distractor_aware else classes
    torch.testing.assert_close(permuted.probabilities, plain.probabilities[:, points][:, :, columns])


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("distractor_aware", [False, True])
def test_gradients_through_tac_including_the_projection(distractor_aware, cosine):
    inputs = episode(ways=3, dim=7, unlabelled=4, queries=2)
    inputs = [tensor.requires_grad_() for tensor in (inputs if distractor_aware else inputs[:4])]

    def probabilities(c, u, q, r, extra=None):
        result = F.tac(c, 2, u, q, r, 2, extra, scale=0.5, cosine=cosine)
        return torch.softmax(result.logits, -1), result.probabilities

    assert gradcheck(probabilities, inputs)


def test_gradients_of_projected_distances_with_dependent_errors():
    errors = torch.randn(4, 6, dtype=torch.float64)
    errors[3] = errors[0] - 2 * errors[1]  # rank 3: the projection is smooth along changes that keep the rank
    points, targets = torch.randn(3, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)

    def distances(free, p, t):
        dependent = free[0] - 2 * free[1]
        return F.projected_sqdist(p, t, F.null_basis(torch.cat([free, dependent[None]])))

    assert gradcheck(distances, [tensor.requires_grad_() for tensor in (errors[:3].clone(), points, targets)])


def test_gradients_stay_finite_in_degenerate_cases():
    references = torch.randn(4, 16)
    centroids = F.modified_references(references).clone()
    centroids[1], centroids[2] = 0, centroids[3]
    tensors = [t.clone().requires_grad_() for t in (centroids, torch.randn(6, 16), torch.randn(5, 16), references)]
    F.tac(tensors[0], 1, tensors[1], tensors[2], tensors[3], 2).logits.logsumexp(-1).sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


def test_constant_projection_gives_no_gradient_to_support_and_unlabelled():
    centroids, unlabelled, queries, references, _ = (tensor.requires_grad_() for tensor in episode())
    result = F.tac(centroids, 1, unlabelled, queries, references, 2, grad_through_projection=False)
    result.logits[-1].logsumexp(-1).sum().backward()
    assert queries.grad.abs().sum() > 0
    assert references.grad.abs().sum() > 0
    assert centroids.grad is None
    assert unlabelled.grad is None


def test_constant_soft_labels_still_teach_the_distractor_reference():
    centroids, unlabelled, queries, references, extra = (tensor.requires_grad_() for tensor in episode())
    result = F.tac(centroids, 1, unlabelled, queries, references, 1, extra, scale=0.1, grad_through_soft_labels=False)
    grads = torch.autograd.grad(result.probabilities.square().sum(), [centroids, unlabelled, references, extra],
                                allow_unused=True, retain_graph=True)  # fmt: skip
    assert grads[:3] == (None, None, None)
    assert grads[3].abs().sum() > 0
    result.logits[-1].logsumexp(-1).sum().backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in (centroids, unlabelled, queries, references, extra))


def test_references_that_do_not_pair_up_are_named():
    with pytest.raises(HandfulError, match=r"centroids of shape \(5, 8\) and references of shape \(4, 8\)"):
        F.error_vectors(torch.randn(5, 8), torch.randn(4, 8))


@pytest.mark.parametrize("with_distractor", [False, True])
@pytest.mark.parametrize("case", ["plain", "common mean", "same class twice", "mean on its reference"])
def test_without_gradients_the_answer_is_the_same(case, with_distractor):
    """Evaluation works in the span of references and means; training spells the projection out."""
    generator = torch.Generator().manual_seed(0)
    batch, ways, dim = 4, 5, 800
    centroids, references, unlabelled, queries = (
        torch.randn(*shape, dim, generator=generator) / dim**0.5
        for shape in ((batch, ways), (ways,), (batch, 30), (batch, 12))
    )
    if case == "common mean":
        centroids, unlabelled, queries = (tensor + 0.5 for tensor in (centroids, unlabelled, queries))
    elif case == "same class twice":
        centroids[:, 1], references[1] = centroids[:, 0], references[0]
    elif case == "mean on its reference":
        centroids[:, 2] = F.modified_references(references)[2]
    extra = torch.randn(dim, generator=generator) / dim**0.5 if with_distractor else None
    shots = torch.tensor([1, 2, 3, 4, 5])
    fast = F.tac(centroids, shots, unlabelled, queries, references, 3, extra, scale=0.5)
    plain = F.tac(centroids, shots, unlabelled, queries, references.clone().requires_grad_(), 3, extra, scale=0.5)
    assert not fast.logits.requires_grad
    assert plain.logits.requires_grad
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("few", [False, True])
def test_distances_of_near_points_keep_their_digits(apart, few):
    """Whether no pair, a few or most of them are too near for a product."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(3, 5, 400, generator=generator)
    points = targets.repeat(1, 4, 1) + apart * torch.randn(3, 20, 400, generator=generator)
    if few:
        points[:, 3:] = torch.randn(3, 17, 400, generator=generator)
    else:
        targets[:, 1:] = targets[:, :1] + apart * targets[:, 1:]
    exact = (points.double().unsqueeze(-2) - targets.double().unsqueeze(-3)).square().sum(-1)
    ours, learning = (F.projected_sqdist(points, t, None) for t in (targets, targets.clone().requires_grad_()))
    assert (ours >= 0).all()
    # 1e-5 of the distance, beyond what shifting all vectors by the targets' mean rounds off.
    floor = (exact.sqrt() * 1e-5 + 1e-10).float()
    assert ((ours - exact).abs() <= 1e-5 * exact + floor).all()
    torch.testing.assert_close(ours, learning.detach(), rtol=1e-5, atol=1e-10 + 1e-5 * apart)


@pytest.mark.parametrize("inside", [False, True])
def test_cosines_without_gradients_are_the_same(inside):
    """Also for points of which next to nothing is left in M."""
    generator = torch.Generator().manual_seed(0)
    centroids, references, unlabelled, queries = (
        torch.randn(*shape, 800, generator=generator) for shape in ((4, 5), (5,), (4, 30), (4, 12))
    )
    if inside:
        errors = F.error_vectors(centroids, references.expand_as(centroids))
        unlabelled[:, :5] = 20 * errors + 0.01 * unlabelled[:, :5]
    fast = F.tac(centroids, 1, unlabelled, queries, references, 1, scale=6.0, cosine=True)
    slow = F.tac(centroids, 1, unlabelled.clone().requires_grad_(), queries, references, 1, scale=6.0, cosine=True)
    torch.testing.assert_close(fast.probabilities, slow.probabilities.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_many_points_are_streamed(batch, cosine, monkeypatch):
    centroids, unlabelled, queries, references, extra = episode(batch, dtype=torch.float32)
    whole = F.tac(centroids, 1, unlabelled, queries, references, 3, extra, cosine=cosine)
    for points in (3, 30, 1000):  # a chunk may be a part of an episode, or several episodes
        monkeypatch.setattr(_spans, "CHUNK_NUMBERS", points * unlabelled.shape[-1])
        streamed = F.tac(centroids, 1, unlabelled, queries, references, 3, extra, cosine=cosine, keep_steps=False)
        torch.testing.assert_close(streamed.logits, whole.logits)
        torch.testing.assert_close(streamed.centroids, whole.centroids[-1:])
        assert len(streamed.probabilities) == 0
    shared = F.tac(centroids, 1, unlabelled[0] if batch else unlabelled, queries, references, 2, keep_steps=False)
    kept = F.tac(centroids, 1, unlabelled[0] if batch else unlabelled, queries, references, 2)
    torch.testing.assert_close(shared.logits, kept.logits)
    none = F.tac(centroids, 1, unlabelled[..., :0, :], queries, references, 2, extra, keep_steps=False)
    torch.testing.assert_close(none.logits[2], whole.logits[0])


def test_no_queries_are_no_logits():
    centroids, unlabelled, queries, references, _ = episode((2,))
    result = F.tac(centroids, 1, unlabelled, queries[..., :0, :], references, 2)
    assert result.logits.shape == (3, 2, 0, 5)
    assert result.centroids.shape == (3, 2, 5, 24)
