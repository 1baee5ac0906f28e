"""Prototypical random walks against a walker that is followed step by step, and what the walk tells of clusters."""

from __future__ import annotations

import math

import pytest
import torch
from episodes import WAYS, make_episode, method

from handful import HandfulError
from handful import functional as F
from handful.methods.prwn import random_walk, walk_loss


def naive_loss(points, means, hops, decay, visit, smoothing, scale=1.0):
    """Every path of every walker, by loops over classes and points."""
    count, ways = len(points), len(means)

    def near(x, y):
        return math.exp(-scale * float((x - y).square().sum()))

    there = [[near(m, u) / sum(near(m, v) for v in points) for u in points] for m in means]
    back = [[near(m, u) / sum(near(o, u) for o in means) for m in means] for u in points]
    there = [[(1 - smoothing) * p + smoothing / count for p in row] for row in there]
    back = [[(1 - smoothing) * p + smoothing / ways for p in row] for row in back]
    hop = [[0.0 if i == j else near(points[i], points[j]) for j in range(count)] for i in range(count)]
    hop = [[value / sum(row) for value in row] for row in hop]
    loss = 0.0
    for n in range(ways):
        place = there[n]
        for number in range(hops + 1):
            if number:
                place = [sum(place[i] * hop[i][j] for i in range(count)) for j in range(count)]
            loss -= decay**number * math.log(sum(place[u] * back[u][n] for u in range(count))) / ways
    for u in range(count):
        loss -= visit * math.log(sum(there[n][u] for n in range(ways)) / ways) / count
    return loss


def near_episode(seed=3):
    """One episode of points so near each other that no step of a walk is certain."""
    episode = make_episode(batch=(), seed=seed)
    for name in ("support", "query", "unlabelled"):
        object.__setattr__(episode, name, 0.2 * getattr(episode, name))
    return episode


@pytest.mark.parametrize(
    "options",
    [{}, {"hops": 0}, {"hops": 5, "decay": 0.4, "visit": 0.3, "smoothing": 0.0}, {"scale": 2.0, "cluster_scale": 0.5}],
)
def test_loss_of_the_walk_is_that_of_following_every_walker(options):
    episode, model = near_episode(), method("prwn", walk=0.8, **options).train()
    plain = method("pn", scale=options.get("scale", 1.0)).train().loss(episode)
    walk = {"hops": model.hops, "decay": model.decay, "visit": model.visit, "smoothing": model.smoothing}
    expected = float(plain) + 0.8 * naive_loss(episode.unlabelled, episode.centroids, **walk)
    assert model.loss(episode).item() == pytest.approx(expected, abs=1e-8)


def test_loss_of_a_batch_is_the_mean_of_its_episodes():
    one, two = near_episode(), near_episode(seed=4)
    both = type(one)(**{name: torch.stack([value, vars(two)[name]]) for name, value in vars(one).items()})
    model = method("prwn").train()
    torch.testing.assert_close(model.loss(both), (model.loss(one) + model.loss(two)) / 2)


def test_walks_of_separated_clusters_return_and_those_of_mixed_ones_do_not():
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor([[-3.0, 0.0], [3.0, 0.0]]).double()
    noise = 0.5 * torch.randn(40, 2, generator=generator).double()
    apart, mixed = means.repeat(20, 1) + noise, noise
    returns = {}
    for name, points in (("apart", apart), ("mixed", mixed)):
        walk = random_walk(
            -F.projected_sqdist(points, means, None), -F.projected_sqdist(points, points, None), hops=3, smoothing=0.0
        )
        torch.testing.assert_close(walk.visits.sum(), torch.ones(()).double())
        returns[name] = walk.returns
    assert returns["apart"].min() > 0.999
    assert returns["mixed"][-1].max() < 0.6, "after a few hops, the walker has forgotten where it came from"
    assert returns["mixed"][0].min() > returns["mixed"][-1].max()


def test_points_that_no_walker_visits_cost():
    to_means = torch.tensor([[0.0, 0.0], [0.0, 0.0]]).double()
    far = torch.cat([to_means, torch.full((1, 2), -20.0).double()])
    even, uneven = (
        walk_loss(logits, torch.zeros(len(logits), len(logits)).double(), hops=0, smoothing=0.01)
        for logits in (to_means, far)
    )
    returning = 2 * -math.log(0.5) / 2
    assert even.item() == pytest.approx(returning + math.log(2))
    assert uneven > even + 1


def test_it_is_evaluated_as_soft_k_means_and_shows_unlabelled_images_in_training():
    episode = make_episode()
    model, plain = method("prwn").eval(), method("soft-kmeans").eval()
    torch.testing.assert_close(model.trajectory(episode, 3), plain.trajectory(episode, 3))
    assert model.trains_on_unlabelled
    assert not method("prwn", walk=0.0).trains_on_unlabelled
    assert model.train().loss(episode.without_unlabelled()).isfinite()


def test_one_unlabelled_point_has_nowhere_to_hop_to():
    episode = make_episode(unlabelled=1)
    episode.unlabelled.requires_grad_()
    loss = method("prwn").train().loss(episode)
    loss.backward()
    assert loss.isfinite() and episode.unlabelled.grad.isfinite().all()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_walk_of_tac_is_that_of_the_points_in_m(share):
    episode = near_episode()
    with_walk, without = (method("tac", walk=walk, partial_projection=share).train() for walk in (0.5, 0.0))
    basis = F.null_basis(F.error_vectors(episode.centroids, with_walk.references))
    inside = [(x - share * (x @ basis) @ basis.mT).detach() for x in (episode.unlabelled, episode.centroids)]
    expected = without.loss(episode).item() + 0.5 * naive_loss(*inside, hops=3, decay=0.7, visit=1.0, smoothing=0.1)
    assert with_walk.loss(episode).item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", ["tac", "tacdap"])
def test_walk_of_tac_reaches_support_and_unlabelled_points(name):
    episode, model = make_episode(spread=0.3), method(name, walk=0.5, cosine_clustering=True, scale=5.0).train()
    for part in (episode.support, episode.unlabelled):
        part.requires_grad_()
    model.loss(episode).backward()
    assert min(part.grad.abs().sum() for part in (episode.support, episode.unlabelled)) > 0
    assert len(model.references) == WAYS
    assert method(name, walk=0.5, train_iterations=0).trains_on_unlabelled


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"walk": -1.0}, "walk must be a number from 0 up, got -1.0"),
        ({"smoothing": 1.5}, "smoothing must be a number from 0 to 1, got 1.5"),
        ({"hops": -1}, "hops must be at least 0, got -1"),
    ],
)
def test_options_that_cannot_be_meant(options, sentence):
    with pytest.raises(HandfulError, match=sentence):
        method("prwn", **options)
