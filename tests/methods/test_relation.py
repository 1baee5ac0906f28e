"""The Relation Network compares as written, and MetaGAN's learner tells real from generated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import Episode, HandfulError, build_method
from handful.methods.feature_maps import map_shape, to_maps


def episode_of_maps(shots=2):
    """Vectors of 3 x 3 maps with 20 channels."""
    parts = [make_episode(shots=shots, seed=seed) for seed in range(9)]
    stacked = {
        name: torch.stack([getattr(part, name) for part in parts], -1).flatten(-2)
        for name in ("support", "query", "unlabelled")
    }
    return replace(parts[0], **stacked)


def test_vectors_become_the_maps_they_were():
    maps = torch.randn(7, 64, 5, 5)
    assert torch.equal(to_maps(maps.flatten(1), map_shape(1600)), maps)
    assert [map_shape(dim) for dim in (64, 256, 1, 20, 640)] == [
        (64, 1, 1), (64, 2, 2), (1, 1, 1), (20, 1, 1), (640, 1, 1)
    ]  # fmt: skip
    assert map_shape(1600, 16) == (16, 10, 10)
    with pytest.raises(HandfulError, match="vectors of length 1600 are no square maps of 3 channels: set channels="):
        map_shape(1600, 3)


@pytest.mark.parametrize("training", [True, False])
def test_scores_are_those_of_maps_upon_each_other_pair_by_pair(training):
    """The first convolution is computed per image, not per pair: the same by its linearity."""
    episode = episode_of_maps()
    torch.manual_seed(0)
    model = build_method("relation", 180, WAYS, channels=20).double().train(training)
    classes = episode.support.sum(-2)[:, None].expand(3, 10, WAYS, 180)
    queries = episode.query[:, :, None].expand(3, 10, WAYS, 180)
    pairs = torch.cat([to_maps(part, (20, 3, 3)) for part in (classes, queries)], dim=1)
    expected = model.head(model.blocks(model.first(pairs))).reshape(3, 10, WAYS)
    torch.testing.assert_close(model(episode), expected)


def test_loss_is_the_cross_entropy_or_the_squared_error_of_the_relations():
    episode, model = make_episode(), method("relation").train()
    expected = torch.nn.functional.cross_entropy(model(episode).flatten(0, 1), episode.query_labels.flatten())
    torch.testing.assert_close(model.loss(episode), expected)
    model = method("relation", squared_error=True).train()
    target = torch.eye(WAYS).double()[episode.query_labels]
    torch.testing.assert_close(model.loss(episode), (torch.sigmoid(model(episode)) - target).square().mean())


@pytest.mark.parametrize("squared_error", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_gradients(training, squared_error):
    episode = make_episode(batch=(2,), ways=3, shots=2, queries=2)
    model = method("relation", ways=3, squared_error=squared_error).train(training)

    def loss(support, query, *parameters):
        return model.loss(replace(episode, support=support, query=query))

    inputs = [part.clone().requires_grad_() for part in (episode.support, episode.query)]
    assert torch.autograd.gradcheck(loss, [*inputs, *model.head.parameters()])


def test_gradients_of_metagan():
    """To queries and unlabelled points; the support also decides what is generated, which is held constant."""
    episode = make_episode(batch=(2,), ways=3, shots=1, unlabelled=3, queries=2)
    model = method("metagan", ways=3).train()

    def loss(query, unlabelled):
        torch.manual_seed(1)  # the same noise each time
        return model.loss(replace(episode, query=query, unlabelled=unlabelled))

    assert torch.autograd.gradcheck(
        loss, [part.clone().requires_grad_() for part in (episode.query, episode.unlabelled)]
    )


def test_probabilities_of_metagan():
    """The learner's loss, from the N + 1 probabilities themselves."""
    episode, model = make_episode(), method("metagan").eval()
    torch.manual_seed(1)
    noise = torch.randn(3, 10, 64).double()
    generated = model.generator(episode.support, noise)

    def probabilities(points):
        scores = model(replace(episode, query=points)).exp()
        return torch.cat([scores, torch.ones_like(scores[..., :1])], -1) / (1 + scores.sum(-1, keepdim=True))

    of_real = probabilities(torch.cat([episode.query, episode.unlabelled], 1))
    of_class = of_real[:, :10].gather(-1, episode.query_labels[..., None])[..., 0]
    right = (of_class / (1 - of_real[:, :10, -1])).log().mean()  # given that it is real
    real = (1 - of_real[..., -1]).log().mean()
    fake = probabilities(generated)[..., -1].log().mean()
    torch.manual_seed(1)
    torch.testing.assert_close(model.loss(episode), -(right + model.adversarial * (real + fake)))


def test_loss_of_the_generator():
    """To pass for real, and to have the mean features of the real points of its task."""
    episode, model = make_episode(), method("metagan", feature_matching=2.0).eval()
    torch.manual_seed(1)
    generated = model.generator(episode.support, torch.randn(3, 10, 64).double())
    passing = 1 - 1 / (1 + model(replace(episode, query=generated)).exp().sum(-1))
    real = torch.cat([episode.query, episode.unlabelled], 1)
    means = [model.features(episode.support, points).mean((1, 2)) for points in (generated, real)]
    matching = (means[0] - means[1]).square().mean()
    torch.manual_seed(1)
    torch.testing.assert_close(model.loss(episode, "generator"), -passing.log().mean() + 2 * matching)


def test_each_turn_moves_its_own_side_only():
    episode, model = make_episode(), method("metagan").train()
    generators = {id(parameter) for parameter in model.turn_parameters()["generator"]}
    model.loss(episode, "learner").backward()
    for parameter in model.parameters():
        assert (parameter.grad is None) == (id(parameter) in generators)
    query = episode.query.clone().requires_grad_()
    model.zero_grad()
    model.loss(replace(episode, query=query), "generator").backward()
    assert query.grad is None, "the backbone is the learner's"
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.turn_parameters()["generator"])


def test_the_task_decides_what_is_generated_but_not_the_order_of_its_classes():
    episode, model = make_episode(batch=()), method("metagan")
    noise = torch.randn(4, 64).double()
    generated = model.generator(episode.support, noise)
    torch.testing.assert_close(model.generator(episode.support[[2, 0, 1, 4, 3]], noise), generated)
    assert not torch.allclose(model.generator(make_episode(batch=(), seed=1).support, noise), generated)
    assert (generated >= 0).all()


def test_metagan_learns_to_tell_real_from_generated_while_the_generator_learns_to_pass():
    """Against a generator that stands still nearly all are recognised; against one that learns, fewer of its own."""
    shares = {}
    for moving in (False, True):
        model = method("metagan", adversarial=1.0).train()
        turns = {"learner": None, "generator": model.turn_parameters()["generator"]}
        taken = {id(parameter) for parameter in turns["generator"]}
        turns["learner"] = [parameter for parameter in model.parameters() if id(parameter) not in taken]
        optimizers = {turn: torch.optim.Adam(parameters, lr=3e-3) for turn, parameters in turns.items()}
        for step in range(60):
            episode = make_episode(unlabelled=16, seed=step)
            relu = {name: getattr(episode, name).relu() for name in ("support", "query", "unlabelled")}
            for turn, optimizer in optimizers.items():
                optimizer.zero_grad()
                model.loss(replace(episode, **relu), turn).backward()
                if turn == "learner" or moving:
                    optimizer.step()
            if step == 29:
                model.metrics()  # only what comes after
        shares[moving] = model.metrics()
    assert min(shares[False].values()) > 95
    assert shares[True]["real_recognised"] > 60
    assert shares[True]["generated_recognised"] < shares[False]["generated_recognised"]


def test_metrics_count_since_the_last_call():
    model = method("metagan").train()
    assert model.metrics() == {}
    model.loss(make_episode())
    assert model.recognised[:, 1].tolist() == [3 * (10 + 8), 3 * 10]
    assert set(model.metrics()) == {"real_recognised", "generated_recognised"}
    assert model.metrics() == {}
    model.eval().loss(make_episode())
    assert model.metrics() == {}, "only training counts"


def test_metagan_trains_on_unlabelled_images_and_does_without():
    model = build_method("metagan", DIM, WAYS).double()
    assert model.trains_on_unlabelled
    assert not build_method("relation", DIM, WAYS).trains_on_unlabelled
    bare: Episode = make_episode().without_unlabelled()
    assert all(model.loss(bare, turn).isfinite() for turn in model.turns)


def test_options_are_checked():
    with pytest.raises(HandfulError, match="noise must be at least 1"):
        build_method("metagan", DIM, WAYS, noise=0)
    with pytest.raises(HandfulError, match="feature_matching must be a number from 0 up"):
        build_method("metagan", DIM, WAYS, feature_matching=-1.0)


def test_published_relations_are_normalised_by_their_own_episode_in_evaluation():
    """As the original's code, which never leaves training mode: batch statistics of the pairs of an episode."""
    episode, model = make_episode(batch=(2,)), method("relation", form="published")
    model.train()(episode)  # moves the running statistics away from where they start
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    logits = model.eval()(episode)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    assert model.title == "RN (transductive)"
    for e in range(2):  # in training mode, one episode at a time
        alone = Episode(**{name: value[e : e + 1] for name, value in vars(episode).items()})
        torch.testing.assert_close(logits[e : e + 1], model.train()(alone))
    default = method("relation").eval()
    assert default.title == "RN"
    assert set(default.state_dict()) <= set(kept)


def test_published_relation_network_is_trained_by_squared_error():
    assert method("relation", form="published").squared_error
