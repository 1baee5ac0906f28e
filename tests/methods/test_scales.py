"""Cosines, learned scales and partial projections, against naive formulas in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from episodes import WAYS, make_episode, method
from torch.nn.functional import cosine_similarity

from handful import HandfulError, build_method
from handful import functional as F
from handful.methods import METHODS, method_options
from handful.methods.partial_projection import partial_tac

KMEANS = ("soft-kmeans", "soft-kmeans-cluster", "masked-soft-kmeans")
BY_MEANS = ("pn", *KMEANS)
FAMILY = ("tapnet", "tapnet-semi", "tapnet-soft-clustering", "tac", "tacdap")


def cosines(points, means):
    return cosine_similarity(points.unsqueeze(-2), means.unsqueeze(-3), dim=-1)


def refined(first, shots, unlabelled, soft):
    return (shots * first + soft.mT @ unlabelled) / (shots + soft.sum(-2).unsqueeze(-1))


def space(means, references, share):
    """The matrix I - share * Q Q^T, with Q from a full SVD of the errors written out."""
    errors = []
    for n, mean in enumerate(means):
        others = [reference for l, reference in enumerate(references) if l != n]  # noqa: E741 - the paper's letter
        target = references[n] - sum(others) / len(others)
        errors.append(target / target.norm() - mean / mean.norm())
    rows = torch.linalg.svd(torch.stack(errors), full_matrices=False)[2]
    return torch.eye(rows.shape[1], dtype=rows.dtype) - share * rows.mT @ rows


def test_pn_by_cosines():
    episode = make_episode(batch=())
    expected = 7 * cosines(episode.query, episode.support.mean(-2))
    torch.testing.assert_close(method("pn", cosine=True, scale=7.0)(episode), expected)


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_soft_kmeans_by_cosines(iterations):
    episode = make_episode(batch=())
    model = method("soft-kmeans", cosine=True, scale=7.0, cluster_scale=0.5, iterations=iterations).eval()
    first = means = episode.support.mean(-2)
    for _ in range(iterations):
        means = refined(first, 2, episode.unlabelled, torch.softmax(3.5 * cosines(episode.unlabelled, means), -1))
    torch.testing.assert_close(model(episode), 7 * cosines(episode.query, means))


def test_the_cluster_by_cosines_is_at_half_from_every_point():
    episode, model = make_episode(batch=()), method("soft-kmeans-cluster", cosine=True, scale=7.0)
    means = episode.centroids
    near = -7 * (1 - cosines(episode.unlabelled, means))
    far = torch.full((8, 1), -7 * 0.5 / 100**2 - math.log(100), dtype=torch.float64)
    expected = torch.softmax(torch.cat([near, far], -1), -1)[:, :WAYS]
    torch.testing.assert_close(model.weights(episode.unlabelled, means), expected, atol=1e-6, rtol=1e-5)


def test_masks_by_cosines_read_cosine_distances():
    episode = make_episode(batch=())
    model, plain = method("masked-soft-kmeans", cosine=True, scale=7.0), method("masked-soft-kmeans", scale=3.5)
    short = [part / part.norm(dim=-1, keepdim=True) for part in (episode.unlabelled, episode.centroids)]
    expected = plain.weights(*short)  # of unit vectors, |a - b|^2 / 2 = 1 - cos
    torch.testing.assert_close(model.weights(episode.unlabelled, episode.centroids), expected)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("classify", ["references", "means"])
@pytest.mark.parametrize("cosine", [False, True])
def test_tac_with_a_partial_projection_against_matrices(share, classify, cosine):
    episode = make_episode(batch=(), spread=0.5)
    options = {"cosine_clustering": cosine, "classify": classify, "partial_projection": share}
    model = method("tac", scale=0.7, cluster_scale=2.0, iterations=2, **options).eval()
    references = model.class_references(episode.centroids)
    first = means = episode.centroids
    for _ in range(2):
        a = space(means, references, share)
        points, targets = episode.unlabelled @ a, means @ a
        by_cosine = cosine or classify == "means"
        near = cosines(points, targets) if by_cosine else -torch.cdist(points, targets).square()
        means = refined(first, 2, episode.unlabelled, torch.softmax(1.4 * near, -1))
    a = space(means, references, share)
    if classify == "means":
        expected = cosines(episode.query @ a, means @ a)
    else:
        expected = -torch.cdist(episode.query @ a, references @ a).square()
    expected = torch.log_softmax(0.7 * expected, -1)
    torch.testing.assert_close(torch.log_softmax(model(episode), -1), expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("options", [{}, {"cosine_clustering": True}, {"reference_bias": True}])
def test_the_plain_form_of_tac_is_tac(name, options, monkeypatch):
    """At the options that F.tac has, values and gradients agree."""
    if name == "tacdap" and not options:
        options = {"distractor_handicap": 0.3}
    episode = make_episode(spread=0.7)
    found = []
    for plain in (False, True):
        model = method(name, cluster_scale=0.5 if name != "tapnet" else 1.0, learn_scale=True, **options).train()
        if plain:
            monkeypatch.setattr(
                type(model), "_formula",
                lambda self: partial(partial_tac, by_means=False, share=1.0),
            )  # fmt: skip
        support = episode.support.clone().requires_grad_()
        unlabelled = episode.unlabelled.clone().requires_grad_()
        task = replace(episode, support=support, unlabelled=unlabelled)
        loss = model.loss(task)
        given = [support, unlabelled, *model.parameters()]
        found.append([loss.detach(), *torch.autograd.grad(loss, given, allow_unused=True), model.eval()(episode)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["tac", "tapnet-soft-clustering"])
def test_without_a_projection_and_by_means_it_is_soft_kmeans_by_cosines(name):
    episode = make_episode()
    ours = method(name, classify="means", partial_projection=0.0, scale=7.0, iterations=3).eval()
    theirs = method("soft-kmeans", cosine=True, scale=7.0, iterations=3).eval()
    torch.testing.assert_close(ours.trajectory(episode, 3), theirs.trajectory(episode, 3))


LEARNING = {
    **{name: {"cosine": True, "learn_scale": True, "scale": 3.0} for name in BY_MEANS},
    **{name: {"classify": "means", "learn_scale": True, "scale": 3.0} for name in FAMILY},
}


@pytest.mark.parametrize("name", LEARNING)
def test_permuting_classes_permutes_the_answer(name):
    episode, model = make_episode(), method(name, ways=9, **LEARNING[name]).eval()
    classes = torch.randperm(WAYS, generator=torch.Generator().manual_seed(1))
    permuted = replace(episode, support=episode.support[:, classes])
    torch.testing.assert_close(model(permuted), model(episode)[:, :, classes])


@pytest.mark.parametrize("name", LEARNING)
def test_a_scale_that_is_learned_starts_at_the_scale_and_gets_a_gradient(name):
    episode = make_episode()
    options = LEARNING[name]
    fixed = method(name, **{**options, "learn_scale": False})
    model = method(name, **options)
    assert model.state_dict().keys() - fixed.state_dict().keys() == {"log_scale"}
    torch.testing.assert_close(model.train()(episode), fixed.train()(episode), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(episode), fixed.eval()(episode), atol=1e-5, rtol=1e-5)
        assert isinstance(model.scale, float)
    step = 1e-4

    def loss_at(log_scale):
        with torch.no_grad():
            model.log_scale.fill_(log_scale)
        return model.train().loss(episode)

    loss_at(1.0).backward()
    if "grad_through_soft_labels" not in method_options(name) or not model.trains_on_unlabelled:
        slope = (loss_at(1.0 + step) - loss_at(1.0 - step)) / (2 * step)
        torch.testing.assert_close(model.log_scale.grad, slope.detach(), atol=1e-6, rtol=1e-4)
    assert model.log_scale.grad.abs() > 0


@pytest.mark.parametrize("name", [name for name in LEARNING if "grad_through_soft_labels" in method_options(name)])
def test_the_gradient_runs_through_the_soft_labels_if_asked_for(name):
    episode = make_episode(spread=0.8)
    model = method(name, **LEARNING[name], grad_through_soft_labels=True).train()
    model.log_scale.data.fill_(0.5)
    model.loss(episode).backward()
    slopes = []
    for moved in (0.5 + 1e-4, 0.5 - 1e-4):
        model.log_scale.data.fill_(moved)
        slopes.append(model.loss(episode).detach())
    torch.testing.assert_close(model.log_scale.grad, (slopes[0] - slopes[1]) / 2e-4, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_off_adds_no_state(name):
    assert "log_scale" not in method(name).state_dict()


@pytest.mark.parametrize(
    ("name", "option"),
    [("pn", "grad_through_soft_labels"), ("pn", "classify"), ("tac", "cosine"), ("tpn", "cosine"),
     ("imp", "learn_scale"), ("soft-kmeans", "partial_projection"), ("classifier", "learn_scale")],
)  # fmt: skip
def test_other_methods_have_no_such_option(name, option):
    with pytest.raises(HandfulError, match=f"'{name}' has no option '{option}'"):
        build_method(name, 8, 5, **{option: True})


@pytest.mark.parametrize(
    ("options", "said"),
    [({"classify": "queries"}, "classify must be references or means, got 'queries'"),
     ({"partial_projection": 1.5}, "partial_projection must be a number from 0 to 1, got 1.5"),
     ({"classify": "means", "reference_bias": True}, "reference_bias is one of references")],
)  # fmt: skip
def test_options_that_make_no_sense(options, said):
    with pytest.raises(HandfulError, match=said):
        build_method("tac", 8, 5, **options)


def test_soft_labels_sum_to_one_where_distractors_have_a_cluster():
    episode = make_episode()
    result = method("tacdap", classify="means", scale=5.0).eval().cluster(episode, 2)
    assert result.probabilities.shape == (2, 3, 8, WAYS + 1)
    torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(2, 3, 8, dtype=torch.float64))
    assert isinstance(result, F.TacResult)
