"""IMP: clusters as needed, none where none are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import HandfulError, build_method
from handful.methods.imp import _open


def test_without_more_clusters_it_is_pn_and_one_step_of_soft_kmeans():
    """At alpha = 0 lambda is infinite. PN's scale is 1 / (2 sigma); sigma = 1 has an exact logarithm."""
    episode = make_episode(shots=5, spread=3.0)
    model = method("imp", alpha=0.0, sigma=1.0).eval()
    assert model._threshold(episode.centroids, model.log_sigma_labelled).isinf().all()
    supervised, semi = model.trajectory(episode, 1)
    assert (supervised - method("pn", scale=0.5)(episode)).abs().max() <= 1e-12
    refined = method("soft-kmeans", scale=0.5)(episode)  # around other means: another constant per query
    assert (semi.log_softmax(-1) - refined.log_softmax(-1)).abs().max() <= 1e-12


def test_one_shot_classes_have_one_cluster():
    episode = make_episode(shots=1, spread=3.0).without_unlabelled()
    assert method("imp").cluster(episode).in_use.shape == (3, WAYS, 1)
    torch.testing.assert_close(method("imp")(episode), method("pn", scale=0.1)(episode))


def two_lumps(gap):
    """Class 0 has four points around +gap and four around -gap on the first axis; the others have one lump each."""
    episode = make_episode(batch=(), shots=8, spread=0.1, unlabelled=0, queries=1)
    support = episode.support.clone()
    support[0, :4, 0] += gap
    support[0, 4:, 0] -= gap
    return replace(episode, support=support)


def test_a_class_of_two_lumps_has_two_clusters_and_the_others_one():
    episode, model = two_lumps(30.0), method("imp", sigma=0.1)
    found = model.cluster(episode)
    assert found.in_use.sum(-1).tolist() == [2, 1, 1, 1, 1]
    lumps = episode.support[0].reshape(2, 4, DIM).mean(1)
    clusters = found.means[0][found.in_use[0]]
    torch.testing.assert_close(clusters[clusters[:, 0].argsort()], lumps[lumps[:, 0].argsort()])


def test_two_lumps_are_recognised_where_their_mean_is_not():
    """Halfway between the lumps of class 0, where its mean is, lies class 1."""
    episode = two_lumps(30.0)
    middle = episode.support[0].mean(0) + 1.0
    support = episode.support.clone()
    support[1] = middle + 0.1 * support[1]
    query = torch.cat([support[0, :1], support[0, -1:], support[0].mean(0, keepdim=True)])
    episode = replace(episode, support=support, query=query, query_labels=torch.tensor([0, 0, 1]))
    assert method("imp", sigma=0.1)(episode).argmax(-1).tolist() == [0, 0, 1]
    assert method("pn")(episode).argmax(-1)[2] == 0, "PN sees the mean only"


def test_far_unlabelled_points_open_clusters_of_no_class():
    """Distractors far from all classes leave the class means alone; without such clusters they would pull at them."""
    episode = make_episode(batch=(), shots=1, spread=0.1, unlabelled=40)
    distractors = episode.unlabelled_labels == -1
    unlabelled = torch.where(distractors[:, None], episode.unlabelled + 30.0, episode.unlabelled)
    episode = replace(episode, unlabelled=unlabelled)
    near = replace(episode, unlabelled=unlabelled[~distractors])
    means, expected = (method("imp", sigma=0.5).cluster(part).means for part in (episode, near))
    torch.testing.assert_close(means, expected)
    pulled = method("imp", sigma=0.5, alpha=0.0).cluster(episode).means
    assert (pulled - expected).abs().max() > 1


def test_clusters_open_until_every_point_is_near_one_whatever_the_order():
    generator = torch.Generator().manual_seed(0)
    points = 3 * torch.randn(40, 2, generator=generator, dtype=torch.double)
    nearest, limit = points.square().sum(-1), torch.tensor(4.0)
    centres, opened = _open(points, nearest, limit, 40)
    assert opened.all()
    apart = torch.cdist(centres, centres).square().fill_diagonal_(torch.inf)
    assert apart.min() > limit, "each was far from all when it was opened"
    assert torch.minimum(nearest, torch.cdist(points, centres).square().amin(-1)).max() <= limit
    order = torch.randperm(40, generator=generator)
    assert torch.equal(_open(points[order], nearest[order], limit, 40)[0], centres)
    assert torch.equal(_open(points, nearest, limit, 3)[0], centres[:3]), "the farthest first, if there is a maximum"


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_permuting_shots_changes_nothing(spread):
    episode = make_episode(shots=6, spread=spread)
    model = method("imp", sigma=1.0).eval()
    shuffled = replace(episode, support=episode.support[:, :, [3, 5, 0, 1, 4, 2]])
    torch.testing.assert_close(model(shuffled), model(episode))


def test_a_batch_may_open_different_numbers_of_clusters():
    near, far = make_episode(batch=(1,), shots=6, spread=0.1), make_episode(batch=(1,), shots=6, spread=6.0, seed=1)
    both = type(near)(**{name: torch.cat([value, getattr(far, name)]) for name, value in vars(near).items()})
    model = method("imp", sigma=1.0).eval()
    found = model.cluster(both).in_use.sum((-2, -1)).tolist()
    assert found[0] == WAYS < found[1]
    torch.testing.assert_close(model(both), torch.cat([model(near), model(far)]))


def test_gradients_reach_both_variances_and_stay_finite_where_no_cluster_opens():
    for spread in (0.1, 3.0):
        model = method("imp").train()
        model.loss(make_episode(spread=spread)).backward()
        assert all(parameter.grad.isfinite() for parameter in model.parameters())


def test_options_are_checked():
    for option, value in {"alpha": -1.0, "sigma": 0.0, "max_clusters": 0}.items():
        with pytest.raises(HandfulError, match=f"{option} must be"):
            build_method("imp", DIM, WAYS, **{option: value})


@pytest.mark.parametrize(
    ("form", "alpha", "sigma", "both"),
    [("published", 1e-5, 15.0, True), ("published-tiered", 0.1, 1.0, False), ("published-omniglot", 0.1, 5.0, False)],
)
def test_the_authors_values_by_data_set(form, alpha, sigma, both):
    model = method("imp", form=form)
    assert model.alpha == alpha
    for log_sigma, learned in ((model.log_sigma_labelled, True), (model.log_sigma_unlabelled, both)):
        assert log_sigma.requires_grad == learned
        assert log_sigma.exp().item() == pytest.approx(sigma)
    episode = make_episode()
    rho = episode.centroids[0].var(0).mean()
    expected = -2 * sigma * math.log(alpha) + DIM * sigma * math.log(1 + rho / sigma)
    found = model._threshold(episode.centroids, model.log_sigma_labelled)[0]
    assert found.item() == pytest.approx(float(expected), rel=1e-6)
