"""The space from soft labels against one that is whitened in all D dimensions, and where it is better than none."""

from __future__ import annotations

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import Episode, HandfulError, build_method


def naive(episode, iterations, shrinkage, scale, cluster_scale=1.0, centre=True, others=None):
    """One episode, by loops over points and classes, with the covariance and its inverse root spelled out."""
    support, unlabelled, query = (
        part / part.norm(dim=-1, keepdim=True) for part in (episode.support, episode.unlabelled, episode.query)
    )
    ways, shots = support.shape[:2]
    points = [x for shot in support for x in shot] + list(unlabelled)
    labels = [[float(n == k) for k in range(ways)] for n in range(ways) for _ in range(shots)]

    def cosine(x, y):
        return x @ y / x.norm() / y.norm()

    means, map_ = list(support.mean(1)), torch.eye(points[0].shape[0]).double()
    for step in range(iterations + 1):
        middle = sum(means) / ways if step else sum(points) / len(points) if iterations else 0 * points[0]
        middle = middle if centre else 0 * middle
        directions = [map_ @ (mean - middle) for mean in means]
        if step == iterations:
            break
        soft = []
        for u in unlabelled:
            logits = torch.stack([scale * cluster_scale * cosine(map_ @ (u - middle), d) for d in directions])
            if others is not None:
                logits = torch.cat([logits, logits.new_tensor([scale * cluster_scale * others])])
            soft.append(torch.softmax(logits, 0).tolist()[:ways])
        every = labels + soft
        means = [
            sum(p[k] * x for p, x in zip(every, points, strict=True)) / sum(p[k] for p in every) for k in range(ways)
        ]
        within = sum(
            p[k] * torch.outer(x - m, x - m) for p, x in zip(every, points, strict=True) for k, m in enumerate(means)
        )
        within = within / len(points)
        level = within.trace() / len(points)
        values, vectors = torch.linalg.eigh(
            (1 - shrinkage) * within + shrinkage * level * torch.eye(len(within)).double()
        )
        map_ = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    return torch.stack([torch.stack([scale * cosine(map_ @ (q - middle), d) for d in directions]) for q in query])


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize(("shrinkage", "unlabelled"), [(0.3, 8), (0.9, 8), (0.2, 40)])
def test_logits_are_those_of_the_space_spelled_out(iterations, shrinkage, unlabelled, centre):
    """With 18 points in 20 dimensions, where the covariance has no inverse, and with 50."""
    episode = make_episode(batch=(), unlabelled=unlabelled, seed=2)
    options = {"shrinkage": shrinkage, "scale": 4.0, "cluster_scale": 0.8, "centre": centre}
    expected = naive(episode, iterations, **options)
    found = method("tac-free", **options).eval().trajectory(episode, iterations)
    torch.testing.assert_close(found[-1], expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("shrinkage", [0.4, 1.0])
def test_a_cluster_of_distractors_takes_its_share_of_every_point(shrinkage):
    episode, options = make_episode(batch=(), unlabelled=8, seed=3), {"shrinkage": shrinkage, "scale": 4.0}
    expected = naive(episode, 2, **options, others=0.3)
    found = method("tac-free", **options, distractor_cosine=0.3).eval().trajectory(episode, 2)
    torch.testing.assert_close(found[-1], expected, atol=1e-8, rtol=0)
    with pytest.raises(HandfulError, match="distractor_cosine must be"):
        method("tac-free", distractor_cosine=1.0)


def test_points_of_other_classes_do_not_pull_the_class_means_away():
    """Every class has a neighbour that no label speaks of, with four times as many points."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randn(30, WAYS, 60, generator=generator)
    neighbours = classes + 1.5 * torch.randn(classes.shape, generator=generator)

    def around(centres, repeats):
        points = centres.repeat_interleave(repeats, 1)
        return points + 0.5 * torch.randn(points.shape, generator=generator)

    labels = torch.arange(WAYS).repeat_interleave(10).expand(30, -1)
    unlabelled = torch.cat([around(classes, 10), around(neighbours, 40)], 1)
    hidden = torch.cat([labels, torch.full((30, 40 * WAYS), -1)], 1)
    episode = Episode(around(classes, 1).unsqueeze(2), around(classes, 10), unlabelled, labels, hidden)
    nearer = {}
    for others in (-1.0, 0.7):
        model = build_method("tac-free", 60, WAYS, scale=20.0, centre=False, shrinkage=1.0, distractor_cosine=others)
        cosines = model.eval().trajectory(episode, 3)[-1] / 20
        nearer[others] = cosines.gather(-1, labels.unsqueeze(-1)).mean()
    assert nearer[0.7] > nearer[-1.0] + 0.1


def test_at_full_shrinkage_it_is_soft_k_means_by_cosines_around_the_mean_of_the_class_means():
    episode, model = make_episode(batch=()), method("tac-free", shrinkage=1.0, iterations=1).eval()
    torch.testing.assert_close(model(episode), naive(episode, 1, shrinkage=1.0, scale=10.0))


def test_at_full_shrinkage_around_the_origin_it_is_soft_k_means_by_cosines():
    episode, model = make_episode(batch=()), method("tac-free", shrinkage=1.0, centre=False).eval()
    other = method("soft-kmeans", cosine=True, scale=10.0).eval()
    unit = episode.map_images(lambda part: part / part.norm(dim=-1, keepdim=True))  # lengths count in its means
    torch.testing.assert_close(model.trajectory(episode, 3), other.trajectory(unit, 3))


def noisy_episode(batch, dim, generator, loud=6.0):
    """Classes that differ in all directions, and points that differ far more in a few, whatever their class."""
    centres = torch.randn(batch, WAYS, dim, generator=generator)

    def around(repeats):
        points = centres.repeat_interleave(repeats, 1)
        noise = torch.randn(points.shape, generator=generator)
        noise[..., :5] *= loud
        return points + noise

    labels = torch.arange(WAYS).repeat_interleave(10).expand(batch, -1)
    hidden = torch.arange(WAYS).repeat_interleave(20).expand(batch, -1)
    return Episode(around(1).unsqueeze(2), around(10), around(20), labels, hidden)


def test_it_finds_the_directions_in_which_points_of_a_class_differ():
    episode = noisy_episode(30, 60, torch.Generator().manual_seed(0))
    right = {}
    for shrinkage in (1.0, 0.5):
        model = build_method("tac-free", 60, WAYS, shrinkage=shrinkage).eval()
        right[shrinkage] = (model.trajectory(episode, 4)[-1].argmax(-1) == episode.query_labels).double().mean()
    assert right[0.5] > right[1.0] + 0.2


def test_it_learns_through_the_space():
    episode = make_episode(batch=(2,), unlabelled=6)
    model = method("tac-free", grad_through_soft_labels=True).train()
    for part in (episode.support, episode.unlabelled):
        part.requires_grad_()

    def loss(support, unlabelled):
        return model.loss(Episode(support, episode.query, unlabelled, episode.query_labels, episode.unlabelled_labels))

    assert torch.autograd.gradcheck(loss, (episode.support, episode.unlabelled))
    constant = method("tac-free").train()
    constant.loss(episode).backward()
    assert episode.unlabelled.grad.abs().sum() > 0, "through the means and the covariance, if not through the labels"


def test_points_that_are_all_alike_have_a_finite_answer():
    episode = make_episode(batch=())
    for part in (episode.support, episode.unlabelled):
        part[:] = torch.ones(DIM)
    assert method("tac-free").eval()(episode).isfinite().all()


def test_shrinkage_must_leave_an_inverse():
    with pytest.raises(HandfulError, match="shrinkage must be a number above 0 and at most 1, got 0"):
        method("tac-free", shrinkage=0.0)
