"""TapNet as published against a naive version: loops, a full SVD, float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import Episode, HandfulError, build_method
from handful import functional as F
from handful.methods.tapnet import choose_in_turn

FAMILY = ("tapnet", "tapnet-semi", "tapnet-soft-clustering", "tac", "tacdap")


def null_space(rows):
    """Orthonormal columns (D, D - N) of what is orthogonal to all rows (N, D), by a full SVD."""
    return torch.linalg.svd(rows, full_matrices=True)[2][len(rows) :].mT


def naive_space(means, references):
    """M, from the errors of each class, written out one by one."""
    errors = []
    for n, mean in enumerate(means):
        others = [reference for l, reference in enumerate(references) if l != n]  # noqa: E741 - the paper's letter
        target = references[n] - sum(others) / len(others)
        errors.append(target / target.norm() - mean / mean.norm())
    return null_space(torch.stack(errors))


def naive_choice(means, references, bias):
    """Classes in their order, each with the best of what is left, in the embedding space."""
    chosen = []
    for mean in means:
        left = [r for r in range(len(references)) if r not in chosen]
        chosen.append(max(left, key=lambda r: -(mean - references[r]).square().sum() + 2 * bias[r]))
    return chosen


def naive_published(model, support, query, unlabelled, iterations):
    """Query logits (iterations + 1, Q, N) of one episode, true values and not up to a constant per query."""
    references, bias, extra = model.references.detach(), model.reference_bias.detach(), model.distractor_reference
    shots, first = support.shape[1], support.mean(1)
    chosen = list(range(len(references))) if model.training else naive_choice(first, references, bias)
    references, bias = references[chosen], bias[chosen]
    means, logits = first, []
    cluster_means, cluster_references = means, references
    if extra is not None:
        cluster_means = torch.cat([means, unlabelled.mean(0, keepdim=True)])
        cluster_references = torch.cat([references, extra.detach()[None]])
    for step in range(iterations + 1):
        space = naive_space(cluster_means[: len(means)], references)
        rows = []
        for x in query:
            inside = space @ (space.mT @ x)
            row = [
                2 * (phi @ inside + b) - (space.mT @ phi).square().sum() - (space.mT @ x).square().sum()
                for phi, b in zip(references, bias, strict=True)
            ]
            rows.append(torch.stack(row))
        logits.append(torch.stack(rows))
        if step == iterations:
            break
        space = naive_space(cluster_means, cluster_references)
        if model.title == "TapNet + Soft-clustering":
            space = torch.eye(DIM, dtype=torch.float64)
        soft = torch.stack(
            [torch.softmax(-((cluster_means - u) @ space).square().sum(-1), 0) for u in unlabelled]
        )  # (U, N or N + 1)
        new = []
        for n in range(len(cluster_means)):
            weight, start = (shots, first[n]) if n < len(first) else (0, 0)
            total = weight * start + sum(p * u for p, u in zip(soft[:, n], unlabelled, strict=True))
            new.append(total / (weight + soft[:, n].sum()))
        cluster_means = torch.stack(new)
    return torch.stack(logits)


def published(name, ways, dtype=torch.float64):
    model = method(name, ways=ways, form="published")
    with torch.no_grad():
        model.reference_bias.copy_(torch.randn(ways, generator=torch.Generator().manual_seed(5)))
    return model.to(dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_published_form_equals_the_naive_version(name, dtype, training):
    """In float32 without gradients this is the fast path; with gradients, and in float64, the plain one."""
    model = published(name, WAYS if training else 9, dtype).train(training)
    episode = make_episode(batch=(2,))
    narrow = Episode(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in vars(episode).items()})
    iterations = 2 if model.iterative else 0
    with torch.no_grad():
        fast = model.trajectory(narrow, iterations)
    plain = model.trajectory(narrow, iterations)
    assert plain.requires_grad
    model.double()
    for e in range(2):
        expected = naive_published(model, episode.support[e], episode.query[e], episode.unlabelled[e], iterations)
        for ours in (fast, plain):
            torch.testing.assert_close(
                torch.log_softmax(ours[:, e].double(), -1), torch.log_softmax(expected, -1), atol=1e-5, rtol=1e-5
            )


def test_the_fast_path_has_the_bias_too(monkeypatch):
    """At the size of real embeddings the path without gradients works in the span of references and means."""
    generator = torch.Generator().manual_seed(0)
    dim, ways = 800, 5
    centroids, references, unlabelled, queries = (
        torch.randn(rows, dim, generator=generator) / dim**0.5 for rows in (ways, ways, 20, 12)
    )
    bias = torch.randn(ways, generator=generator)
    made = []
    spans = F.SpanLogits.__init__
    monkeypatch.setattr(F.SpanLogits, "__init__", lambda self, *given: made.append(1) or spans(self, *given))
    logits = F.tac(centroids, 1, unlabelled, queries, references, 0, reference_bias=bias).logits[0]
    assert made == [1]
    space = naive_space(centroids.double(), references.double())
    phi, x = references.double() @ space, queries.double() @ space
    expected = 2 * (x @ phi.mT + bias.double()) - phi.square().sum(-1) - x.square().sum(-1, keepdim=True)
    torch.testing.assert_close(
        torch.log_softmax(logits.double(), -1), torch.log_softmax(expected, -1), atol=1e-5, rtol=1e-5
    )


def test_references_and_biases_learn_and_the_projection_does_not():
    episode = make_episode(batch=(2,))
    episode.support.requires_grad_()
    model = published("tac", WAYS).train()
    model.loss(episode).backward()
    assert model.references.grad.abs().sum() > 0
    assert model.reference_bias.grad.abs().sum() > 0
    assert episode.support.grad is None


def test_classes_choose_in_turn():
    references = torch.eye(4)
    wishes = torch.tensor([[0.0, 1.0, 0.9, 0.0], [0.0, 1.0, 0.9, 0.0], [0.0, 1.0, 0.9, 0.1]])
    assert choose_in_turn(wishes, references).tolist() == [1, 2, 3]
    assert choose_in_turn(wishes, references, torch.tensor([5.0, 0.0, 0.0, 0.0])).tolist() == [0, 1, 2]
    assert choose_in_turn(wishes.expand(2, 3, 3, 4), references).shape == (2, 3, 3)


def test_matching_takes_two_words():
    with pytest.raises(HandfulError, match="matching must be optimal or greedy, got 'best'"):
        build_method("tapnet", 8, 5, matching="best")


def test_a_model_without_biases_has_the_weights_it_had():
    assert set(method("tac").state_dict()) == {"references"}
    assert set(method("tacdap", reference_bias=True).state_dict()) == {
        "references", "reference_bias", "distractor_reference"
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_random_references_have_other_directions_and_the_same_lengths(name):
    model = published(name, 9).eval()
    ((key, other),) = model.ablations().items()
    assert key == "random_references"
    assert type(other) is type(model)
    learned = [value for value in (model.references, model.distractor_reference) if value is not None]
    drawn = [value for value in (other.references, other.distractor_reference) if value is not None]
    for ours, theirs in zip(learned, drawn, strict=True):
        torch.testing.assert_close(theirs.norm(dim=-1), ours.norm(dim=-1))
        assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).abs().max() < 0.9
    assert torch.equal(other.reference_bias, model.reference_bias)
    assert torch.equal(model.with_random_references(0).references, other.references)
    assert not torch.equal(model.with_random_references(1).references, other.references)
    episode = make_episode()
    assert not torch.equal(other(episode), model(episode))


def test_a_method_without_references_has_no_ablation():
    assert method("pn").ablations() == {}


def test_greedy_matching_depends_on_the_order_of_classes_and_optimal_does_not():
    episode = make_episode(batch=(40,), spread=0.2)
    turned = replace(episode, support=episode.support.flip(1))
    same = {}
    for matching in ("greedy", "optimal"):
        model = method("tapnet", matching=matching).eval()
        same[matching] = torch.allclose(model(turned), model(episode).flip(-1))
    assert same == {"greedy": False, "optimal": True}
