"""The refinements of Ren et al. as published, against naive versions: loops over points and classes."""

from __future__ import annotations

import math

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method
from torch.autograd import gradcheck

from handful import HandfulError, build_method
from handful import functional as F


def one_episode(spread=0.4):
    """Points near each other, so that no soft label is 0 or 1."""
    episode = make_episode(batch=(), spread=1.0, seed=3)
    for name in ("support", "query", "unlabelled"):
        object.__setattr__(episode, name, spread * getattr(episode, name))
    return episode


def refined(first, shots, unlabelled, weights):
    """Means over labelled and softly labelled points; the rows of ``first`` beyond the classes have no support."""
    means = []
    for n in range(weights.shape[1]):
        weight = shots if n < WAYS else 0
        total = weight * first[n] + sum(p * u for p, u in zip(weights[:, n], unlabelled, strict=True))
        means.append(total / (weight + weights[:, n].sum()))
    return torch.stack(means)


def squared(points, means):
    return torch.stack([torch.stack([(x - m).square().sum() for m in means]) for x in points])


def test_published_soft_kmeans():
    episode, model = one_episode(), method("soft-kmeans", form="published")
    first = episode.centroids
    soft = torch.softmax(-squared(episode.unlabelled, first), -1)
    expected = -squared(episode.query, refined(first, 2, episode.unlabelled, soft))
    torch.testing.assert_close(torch.log_softmax(model(episode), -1), torch.log_softmax(expected, -1))
    assert model.train_iterations == model.iterations == 1
    episode.unlabelled.requires_grad_()
    assert not model.weights(episode.unlabelled, first).requires_grad


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_published_cluster_moves_and_takes_queries(iterations):
    episode, model = one_episode(), method("soft-kmeans-cluster", form="published", iterations=iterations).eval()
    with torch.no_grad():
        model.log_length.fill_(0.4)
    radii = torch.ones(WAYS + 1, dtype=torch.float64)
    radii[-1] = math.exp(0.4)

    def fit(points, means):
        return -squared(points, means) / 2 / radii**2 - 0.5 * math.log(2 * math.pi) - radii.log()

    first = torch.cat([episode.centroids, torch.zeros(1, DIM)])
    means = first
    for _ in range(iterations):
        means = refined(first, 2, episode.unlabelled, torch.softmax(fit(episode.unlabelled, means), -1))
    logits = model(episode)
    assert logits.shape == (10, WAYS + 1)
    torch.testing.assert_close(torch.log_softmax(logits, -1), torch.log_softmax(fit(episode.query, means), -1))


def test_the_published_cluster_is_out_of_the_way_without_unlabelled_points():
    episode, model = one_episode().without_unlabelled(), method("soft-kmeans-cluster", form="published").eval()
    distance = squared(episode.query, torch.cat([episode.centroids, torch.zeros(1, DIM)]))
    expected = -distance / 2
    expected[:, -1] = -distance[:, -1] / 2 / 1e10 - math.log(1e5)
    torch.testing.assert_close(model(episode), expected)


@pytest.mark.parametrize("name", ["soft-kmeans-cluster", "masked-soft-kmeans"])
def test_published_soft_labels_are_differentiated_through(name):
    episode, model = one_episode(), method(name, form="published")
    unlabelled, means = episode.unlabelled.clone(), model.clusters(episode)[0].clone()
    if name == "soft-kmeans-cluster":
        assert gradcheck(model.weights, (unlabelled.requires_grad_(), means.requires_grad_()))
    else:  # the statistics are constants, so that finite differences are not those of the gradient
        model.weights(unlabelled.requires_grad_(), means.requires_grad_()).sum().backward()
        assert unlabelled.grad.abs().sum() > 0
        assert means.grad.abs().sum() > 0
    constant = method(name)
    assert not torch.autograd.grad(
        constant.weights(unlabelled, constant.clusters(episode)[0]).sum(), unlabelled, allow_unused=True
    )[0]


def test_published_masks():
    episode, model = one_episode(), method("masked-soft-kmeans", form="published")
    first, unlabelled = episode.centroids, episode.unlabelled
    with torch.no_grad():
        for value in model.mask.parameters():
            value.copy_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(2)))
    distance = squared(unlabelled, first)  # (U, N)
    soft = torch.softmax(-distance, -1)
    masks = torch.empty_like(soft)
    for n in range(WAYS):
        d = distance[:, n] / distance[:, n].mean()
        mean, var = d.mean(), d.var(correction=0)
        skew, kurtosis = ((d - mean) ** 3).mean() / var.sqrt() ** 3, ((d - mean) ** 4).mean() / var**2 - 3
        hidden = torch.tanh(model.mask[0](torch.stack([d.min(), d.max(), var, skew, kurtosis])))
        threshold, slope = model.mask[2](hidden).exp()
        masks[:, n] = torch.sigmoid((-d + threshold) * slope)
    torch.testing.assert_close(model.weights(unlabelled, first), soft * masks * masks)
    expected = -squared(episode.query, refined(first, 2, unlabelled, soft * masks * masks))
    torch.testing.assert_close(torch.log_softmax(model(episode), -1), torch.log_softmax(expected, -1))


def test_published_masks_start_with_threshold_and_slope_near_1():
    model = method("masked-soft-kmeans", form="published")
    outputs = model.mask(torch.randn(50, 5).double()).exp()
    assert (outputs - 1).abs().max() < 0.1


def test_the_handicap_of_the_distractor_cluster_is_added_to_its_squared_distances():
    episode = make_episode(batch=(2,), shots=1, unlabelled=30)
    plain, model = (method("tacdap", distractor_handicap=value).eval() for value in (0.0, 0.7))
    before, after = (m.cluster(episode, 1).probabilities[0] for m in (plain, model))
    spread = (episode.unlabelled - episode.unlabelled.mean(1, keepdim=True)).square().sum(-1).mean(1)
    logits = before.log()
    logits[..., -1] -= 0.7 * spread[:, None]
    torch.testing.assert_close(after, torch.softmax(logits, -1))
    torch.testing.assert_close(model.trajectory(episode, 2), model.cluster(episode, 2).logits)  # streamed, and not


def test_the_distractor_cluster_takes_nearly_all_points_of_one_shot_tasks_without_the_handicap():
    """A mean of 100 points lies nearer to each of them than one labelled image of the class does."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 5, 400, generator=generator) * 0.5

    def around(repeats):
        points = centres.repeat_interleave(repeats, 1)
        return points + torch.randn(points.shape, generator=generator)

    episode = make_episode(batch=(20,), dtype=torch.float32)
    for name, value in (("support", around(1)[:, :, None]), ("unlabelled", around(20)), ("query", around(2))):
        object.__setattr__(episode, name, value)
    torch.manual_seed(0)
    share = {}
    for handicap in (0.0, 0.8):
        model = build_method("tacdap", 400, 5, distractor_handicap=handicap).eval()
        share[handicap] = model.cluster(episode, 1).probabilities[0][..., -1].mean().item()
    assert share[0.0] > 0.9
    assert share[0.8] < 0.5


def test_the_handicap_is_of_distances():
    with pytest.raises(HandfulError, match="leave it out with cosine_clustering"):
        build_method("tacdap", 8, 5, distractor_handicap=0.5, cosine_clustering=True)
    with pytest.raises(HandfulError, match="distractor_handicap must be a number from 0 up, got -1"):
        build_method("tacdap", 8, 5, distractor_handicap=-1.0)


def test_offset_of_the_distractor_cluster_is_the_same_on_both_paths():
    generator = torch.Generator().manual_seed(0)
    centroids, references, unlabelled, queries = (
        torch.randn(rows, 800, generator=generator) / 800**0.5 for rows in (5, 5, 20, 12)
    )
    extra, offset = torch.randn(800, generator=generator) / 800**0.5, torch.tensor(0.6)
    arguments = (centroids, 1, unlabelled, queries)
    fast, streamed = (
        F.tac(*arguments, references, 2, extra, distractor_offset=offset, keep_steps=keep) for keep in (True, False)
    )
    plain = F.tac(*arguments, references.clone().requires_grad_(), 2, extra, distractor_offset=offset)
    torch.testing.assert_close(fast.logits, plain.logits.detach(), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(fast.logits, streamed.logits, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(fast.probabilities, F.tac(*arguments, references, 2, extra).probabilities)
