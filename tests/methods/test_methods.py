"""What is true of every method, and what sets each apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method, refined
from torch.autograd import gradcheck

import handful
from handful import Episode, HandfulError, build_method
from handful import functional as F
from handful.methods import METHODS, Method, method_options, used_options
from handful.methods.base import REFINEMENT
from handful.methods.tapnet import TapNet, assign_references

PROJECTING = [name for name, cls in METHODS.items() if issubclass(cls, TapNet)]


def test_names_and_order_are_those_of_the_tables():
    tables = [
        "pn", "soft-kmeans", "soft-kmeans-cluster", "masked-soft-kmeans",
        "tpn", "relation", "metagan", "imp",
        "tapnet", "tapnet-semi", "tapnet-soft-clustering", "tac", "tacdap",
        "classifier", "classifier-semi", "prwn",
    ]  # fmt: skip
    assert [name for name in handful.methods() if name in tables] == tables


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_logits_loss_and_gradients(name, training):
    episode, model = make_episode(spread=3.0), method(name).train(training)
    episode.query.requires_grad_()
    logits = model(episode)
    assert logits.shape == (3, 10, WAYS)
    if type(model).loss is Method.loss:  # the others have a loss of their own, and a test of it
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), episode.query_labels.flatten())
        torch.testing.assert_close(model.loss(episode), expected)
    for turn in model.turns:
        model.loss(episode, turn).backward()
    assert episode.query.grad.abs().sum() > 0
    for parameter, value in model.named_parameters():
        assert value.grad.isfinite().all()
        assert training is False or value.grad.abs().sum() > 0, parameter


@pytest.mark.parametrize("name", METHODS)
def test_batches_are_independent_episodes(name):
    episode, model = make_episode(), method(name).eval()
    second = Episode(**{field: value[1] for field, value in vars(episode).items()})
    torch.testing.assert_close(model(second), model(episode)[1])


@pytest.mark.parametrize("references", [WAYS, 9])
@pytest.mark.parametrize("name", METHODS)
def test_permuting_classes_queries_and_unlabelled_points_permutes_the_answer(name, references):
    episode, model = make_episode(), method(name, ways=references, **refined(name, 2)).eval()
    generator = torch.Generator().manual_seed(1)
    classes, rows, points = (torch.randperm(n, generator=generator) for n in (WAYS, 10, 8))
    permuted = replace(
        episode,
        support=episode.support[:, classes],
        query=episode.query[:, rows],
        unlabelled=episode.unlabelled[:, points],
    )
    torch.testing.assert_close(model(permuted), model(episode)[:, rows][:, :, classes])


@pytest.mark.parametrize("name", METHODS)
def test_a_query_does_not_see_the_others(name):
    episode, model = make_episode(), method(name).eval()
    alone = replace(episode, query=episode.query[:, :1], query_labels=episode.query_labels[:, :1])
    torch.testing.assert_close(model(alone), model(episode)[:, :1])


@pytest.mark.parametrize("name", METHODS)
def test_trajectory_starts_without_unlabelled_points_and_ends_at_the_answer(name):
    episode, model = make_episode(), method(name, **refined(name, 3)).eval()
    steps = model.trajectory(episode, 3)
    assert len(steps) == (4 if model.iterative else 1)
    torch.testing.assert_close(steps[-1], model(episode))
    without = replace(episode, unlabelled=episode.unlabelled[:, :0], unlabelled_labels=episode.unlabelled_labels[:, :0])
    for step in model.trajectory(without, 3):
        torch.testing.assert_close(step, steps[0])


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.prepares])
def test_what_is_computed_of_each_image_once_gives_the_same_answer(name):
    episode, model = make_episode(), method(name, **refined(name, 2)).eval()
    prepared = episode.map_images(model.per_image)
    torch.testing.assert_close(model.compare(prepared, 2), model.trajectory(episode, 2))
    assert not torch.equal(prepared.query, episode.query)


@pytest.mark.parametrize("name", METHODS)
def test_float32_agrees_with_float64(name):
    episode, model = make_episode(), method(name, **refined(name, 2)).eval()
    wide = torch.softmax(model(episode), -1)
    single = Episode(**{field: v.float() if v.is_floating_point() else v for field, v in vars(episode).items()})
    torch.testing.assert_close(torch.softmax(model.float()(single), -1).double(), wide, atol=1e-4, rtol=1e-3)


def test_pn_is_the_nearest_class_mean():
    episode = make_episode(batch=())
    distance = torch.cdist(episode.query, episode.support.mean(-2))
    torch.testing.assert_close(torch.softmax(method("pn")(episode), -1), torch.softmax(-distance.square(), -1))


def test_soft_kmeans_is_one_weighted_mean():
    episode = make_episode(batch=())
    means = episode.support.mean(-2)
    soft = torch.softmax(-torch.cdist(episode.unlabelled, means).square(), -1)
    refined = (2 * means + soft.mT @ episode.unlabelled) / (2 + soft.sum(0)[:, None])
    expected = torch.softmax(-torch.cdist(episode.query, refined).square(), -1)
    torch.testing.assert_close(torch.softmax(method("soft-kmeans")(episode), -1), expected)


def test_cluster_at_the_origin_takes_points_near_it_and_its_reach_is_learned():
    model = method("soft-kmeans-cluster", length_scale=1.0)
    means = torch.randn(WAYS, DIM).double() * 3
    points = torch.cat([means[:1], torch.zeros(1, DIM)])
    near, origin = model.weights(points, means).sum(-1)
    assert near > 0.99
    assert origin < 0.01
    with torch.no_grad():
        model.log_length.fill_(3.0)  # a wide distractor cluster reaches what lies between the classes
    assert model.weights(means.mean(0, keepdim=True) + 2, means).sum() < 0.5
    model.weights(points + 1, means).sum().backward()
    assert model.log_length.grad.abs() > 0


def test_the_distractor_cluster_starts_wide():
    """At a squared distance of log(100), a class and the cluster of length scale 100 have equal claims."""
    model = method("soft-kmeans-cluster")
    means = torch.zeros(WAYS, DIM).double()
    means[1:] += 50  # the others are out of reach
    edge = torch.zeros(3, DIM).double()
    edge[1, 0], edge[2, 0] = math.log(100) ** 0.5, 2 * math.log(100) ** 0.5
    torch.testing.assert_close(
        model.weights(edge, means)[:2, 0], torch.tensor([100 / 101, 0.5]).double(), atol=1e-3, rtol=0
    )
    assert model.weights(edge, means)[2].sum() < 1e-5


def test_masks_count_near_points_more():
    model = method("masked-soft-kmeans")
    episode = make_episode(batch=(), unlabelled=40, spread=0.3)
    means = episode.support.mean(-2)
    kept = model.weights(episode.unlabelled, means).sum(-1)
    distractor = episode.unlabelled_labels == -1
    assert kept[~distractor].mean() > kept[distractor].mean() + 0.2
    assert (model.weights(episode.unlabelled, means) <= F.soft_labels(episode.unlabelled, means, None)).all()


def test_tac_without_refinement_is_tapnet_and_tapnet_semi_refines_as_tac():
    episode = make_episode()
    tapnet, semi, tac = (method(name).eval() for name in ("tapnet", "tapnet-semi", "tac"))
    for model in (semi, tac):
        model.load_state_dict(tapnet.state_dict())
        torch.testing.assert_close(model.trajectory(episode, 0)[0], tapnet(episode))
    torch.testing.assert_close(semi.trajectory(episode, 3), tac.trajectory(episode, 3))
    assert not torch.allclose(tac.trajectory(episode, 1)[1], tapnet(episode))


def test_tapnet_semi_is_trained_as_tapnet():
    episode = make_episode()
    tapnet, semi = (method(name).train() for name in ("tapnet", "tapnet-semi"))
    torch.testing.assert_close(semi.loss(episode), tapnet.loss(episode))


def test_soft_clustering_differs_from_tac_only_in_the_clustering_space():
    episode = make_episode(batch=())
    model = method("tapnet-soft-clustering").eval()
    means = episode.support.mean(-2)
    refined = F.refine(means, 2, episode.unlabelled, F.soft_labels(episode.unlabelled, means, None))
    references = model.class_references(means)
    expected = F.projected_logits(episode.query, references, F.null_basis(F.error_vectors(refined, references)))
    torch.testing.assert_close(model.trajectory(episode, 1)[1], expected)


def test_soft_clustering_by_cosines_with_the_class_means_in_the_embedding_space():
    episode = make_episode(batch=())
    model = method("tapnet-soft-clustering", cosine_clustering=True, cluster_scale=6.0).eval()
    means = episode.support.mean(-2)
    cosines = torch.nn.functional.cosine_similarity(episode.unlabelled.unsqueeze(1), means.unsqueeze(0), dim=-1)
    soft = torch.softmax(6 * cosines, -1)
    result = model.cluster(episode, 1)
    torch.testing.assert_close(result.probabilities[0], soft)
    torch.testing.assert_close(result.centroids[1], F.refine(means, 2, episode.unlabelled, soft))


def test_distractor_pair_shapes_the_clustering_but_not_the_final_space():
    episode = make_episode(batch=())
    model = method("tacdap").eval()
    result = model.cluster(episode, 1)
    assert result.probabilities.shape == (1, 8, WAYS + 1)
    references = model.class_references(episode.centroids)
    final = F.null_basis(F.error_vectors(result.centroids[1][:WAYS], references))
    torch.testing.assert_close(result.logits[1], F.projected_logits(episode.query, references, final))
    tac = method("tac").eval()
    with torch.no_grad():
        tac.references.copy_(model.references)
    assert not torch.allclose(tac.cluster(episode, 1).centroids[1], result.centroids[1][:WAYS])


@pytest.mark.parametrize("name", PROJECTING)
def test_gradient_through_the_projection_is_an_option(name):
    episode = make_episode(batch=(), ways=3, unlabelled=4, queries=2)
    model = method(name, ways=3, grad_through_projection=True, grad_through_soft_labels=True).train()

    def loss(support, query, unlabelled):
        return model.loss(replace(episode, support=support, query=query, unlabelled=unlabelled))

    inputs = [value.clone().requires_grad_() for value in (episode.support, episode.query, episode.unlabelled)]
    assert gradcheck(loss, inputs)
    model.grad_through_projection = False
    support = episode.support.clone().requires_grad_()
    loss(support, episode.query.clone().requires_grad_(), episode.unlabelled).backward()
    assert support.grad is None or support.grad.abs().sum() == 0


def test_assignment_is_the_best_one_and_follows_the_classes():
    generator = torch.Generator().manual_seed(0)
    references = torch.randn(6, DIM, generator=generator)
    centroids = F.modified_references(references)[[4, 0, 2]] + 0.1 * torch.randn(3, DIM, generator=generator)
    assert assign_references(centroids, references).tolist() == [4, 0, 2]
    assert assign_references(centroids[[2, 0, 1]], references).tolist() == [2, 4, 0]
    assert assign_references(centroids.expand(2, 5, 3, DIM), references).shape == (2, 5, 3)


def test_more_ways_than_references_is_said_in_a_sentence():
    with pytest.raises(HandfulError, match="5 ways need as many references, but this model has 3"):
        method("tac", ways=3).eval()(make_episode())


def test_options():
    assert method_options("tac") == {
        "form": "default", "walk": 0.0, "train_iterations": 1, "iterations": 2, "grad_through_projection": True,
        "grad_through_soft_labels": False, "reference_bias": False, "matching": "optimal", "cosine_clustering": False,
        "classify": "references", "learn_scale": False, "partial_projection": 1.0, "scale": 1.0, "cluster_scale": 1.0,
    }  # fmt: skip
    assert method_options("tapnet-semi")["train_iterations"] == 0
    with pytest.raises(HandfulError, match="the method 'pn' has no option 'length_scale': choose from"):
        build_method("pn", 4, 5, length_scale=2.0)
    with pytest.raises(HandfulError, match=f"unknown method 'protonet': choose one of {', '.join(METHODS)}$"):
        build_method("protonet", 4, 5)
    with pytest.raises(HandfulError, match="scale must be a number above 0"):
        build_method("pn", 4, 5, scale=0.0)


@pytest.mark.parametrize("option", ["scale", *REFINEMENT])
@pytest.mark.parametrize("name", METHODS)
def test_every_shared_option_has_an_effect_or_is_refused(name, option):
    episode, other = (
        make_episode(),
        {"scale": 0.7, "cluster_scale": 0.3, "train_iterations": 4, "iterations": 4}[option],
    )
    if option not in method_options(name):
        with pytest.raises(HandfulError, match=f"'{name}' makes no use of the option '{option}': leave it out"):
            method(name, **{option: other})
        return

    def answers(**options):
        model = method(name, **options)
        torch.manual_seed(1)
        loss = model.train().loss(episode)
        shown = torch.tensor([model.trains_on_unlabelled])
        return [loss, shown, model.eval()(episode)]

    values = [0, 4] if option.endswith("iterations") else [1.0, other]
    first, second = (answers(**{option: value}) for value in values)
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_does_not_use_may_have_its_default(name):
    """Settings that were written when it was accepted still describe the method."""
    defaults = {"cluster_scale": 1.0, "iterations": 1}
    unused = {option: value for option, value in defaults.items() if option not in method_options(name)}
    ours, theirs = (method(name, **options).eval()(make_episode()) for options in ({}, unused))
    assert torch.equal(ours, theirs)
    assert used_options(name, {"scale": 2.0, **dict.fromkeys(unused, 7)}) == {"scale": 2.0}


def test_unlabelled_points_help_where_one_shot_is_noisy():
    """Ten clusters' worth of evidence beats one noisy example: the reason for all of this."""
    episode = make_episode(batch=(200,), shots=1, unlabelled=60, queries=40, spread=1.6)
    right = {}
    for name in ("pn", "soft-kmeans"):
        right[name] = (method(name, scale=0.3).eval()(episode).argmax(-1) == episode.query_labels).double().mean()
    assert right["soft-kmeans"] > right["pn"] + 0.05
