"""LST against a classifier that is trained by automatic differentiation, and what it makes of wrong labels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method
from torch.nn.functional import cross_entropy

from handful import Episode, HandfulError, build_method
from handful.embedders.backbones import build_backbone
from handful.runs.learner import Learner


def naive(model, episode, iterations, scale=10.0, steps=10, fine_steps=5):
    """Query logits after each part of each stage, with weights of all D dimensions."""
    support, others, query = (
        x / x.norm(dim=-1, keepdim=True) for x in (episode.support, episode.unlabelled, episode.query)
    )
    labels, rate = torch.arange(WAYS).repeat_interleave(episode.shots), float(model.log_rate.exp())
    support, means = support.flatten(0, 1), support.mean(1)
    means = means / means.norm(dim=-1, keepdim=True)
    soft = []
    for u in others:
        hidden = [torch.relu(model.of_point(u) + model.of_class(m)) for m in means]
        soft.append(torch.softmax(torch.stack([model.last(h)[0] for h in hidden]), 0).detach())
    chosen, found, answers = [], [], []
    for _ in range(iterations + 1):
        weights, bias = means.clone(), torch.zeros(WAYS).double()
        for step in range(steps + fine_steps):
            weights, bias = weights.detach().requires_grad_(), bias.detach().requires_grad_()
            loss = cross_entropy(scale * (support @ weights.T + bias), labels)
            if step < steps and chosen:
                logits = [soft[j] * scale * (others[j] @ weights.T + bias) for j in chosen]
                loss = loss + cross_entropy(torch.stack(logits), torch.tensor(found))
            slopes = torch.autograd.grad(loss, (weights, bias))
            weights, bias = weights - rate * slopes[0], bias - rate * slopes[1]
            if step in (steps - 1, steps + fine_steps - 1):
                answers.append(scale * (query @ weights.T + bias).detach())
        sure = torch.softmax(scale * (others @ weights.T + bias).detach(), 1)
        chosen, found = [], []
        for n in range(WAYS):
            mine = sorted(
                (j for j in range(len(others)) if sure[j].argmax() == n), key=lambda j, n=n: -float(sure[j, n])
            )
            chosen += mine[: model.most]
            found += [n] * len(mine[: model.most])
    return answers


def test_logits_and_loss_are_those_of_a_classifier_trained_in_each_stage():
    episode, model = make_episode(batch=(), unlabelled=16, seed=1), method("lst", most=3).eval()
    with torch.no_grad():
        model.last.weight.mul_(20)  # so that the weights of points differ
    answers = naive(model, episode, 3)
    torch.testing.assert_close(model.trajectory(episode, 3), torch.stack(answers[1::2]), atol=1e-8, rtol=0)
    expected = sum(cross_entropy(logits, episode.query_labels) for logits in naive(model, episode, 1)[-2:])
    assert model.train().loss(episode).item() == pytest.approx(expected.item(), abs=1e-8)


def crowded(share):
    """One-shot tasks with distractors near a class mean, as many as ``share`` of the unlabelled points."""
    episode = make_episode(batch=(60,), shots=1, unlabelled=60, queries=40, spread=1.8, seed=3)
    wrong = episode.support[:, :1, 0] + 3 * torch.randn(60, 1, DIM, generator=torch.Generator().manual_seed(0)).double()
    count = int(60 * share)
    clean = episode.unlabelled[:, :45]  # those that are of a class
    noise = 0.2 * torch.randn(60, count, DIM, generator=torch.Generator().manual_seed(1)).double()
    return replace(episode, unlabelled=torch.cat([clean, wrong + noise], dim=1))


def accuracy(model, episode, iterations):
    return (model.eval().trajectory(episode, iterations)[-1].argmax(-1) == episode.query_labels).double().mean().item()


def test_unlabelled_points_help_and_the_surest_are_enough():
    episode = crowded(0.0)
    model = method("lst", most=10, rate=0.3)
    assert accuracy(model, episode, 3) > accuracy(model, episode, 0) + 0.02


def test_weights_of_nothing_undo_wrong_labels():
    """Points that a network trusts in no class have no part in the training, whatever label they were given."""
    episode, model = crowded(0.7), method("lst", most=30, rate=0.3)
    alone = accuracy(model, episode, 0)
    trusted = accuracy(model, episode, 1)
    model.weights = lambda unlabelled, means: torch.zeros(*unlabelled.shape[:-1], WAYS).double()
    torch.testing.assert_close(model.trajectory(episode, 1)[1], model.trajectory(episode, 1)[0])
    assert accuracy(model, episode, 1) == alone
    assert trusted != alone


def test_steps_on_the_support_alone_bring_a_misled_classifier_back():
    episode = crowded(0.7)
    misled, repaired = (method("lst", most=30, rate=0.3, fine_steps=steps) for steps in (0, 10))
    own = replace(episode, query=episode.support.flatten(1, 2), query_labels=torch.arange(WAYS).expand(60, -1))
    lost = [cross_entropy(model.eval()(own).flatten(0, 1), own.query_labels.flatten()) for model in (misled, repaired)]
    assert lost[1] < lost[0]


def test_training_moves_the_rate_and_the_weights_of_points():
    episode, model = make_episode(unlabelled=20), method("lst").train()
    model.loss(episode).backward()
    assert model.log_rate.grad.abs() > 0
    assert all(layer.weight.grad.abs().sum() > 0 for layer in (model.of_point, model.of_class, model.last))
    assert math.isclose(model.log_rate.exp().item(), 0.1, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"most": 0}, "most must be at least 1, got 0"),
        ({"rate": 0.0}, "rate must be a number above 0, got 0.0"),
        ({"fine_steps": -1}, "fine_steps must be at least 0, got -1"),
    ],
)
def test_options_that_cannot_be_meant(options, sentence):
    with pytest.raises(HandfulError, match=sentence):
        method("lst", **options)


def test_scale_and_shift_leave_the_rest_of_the_backbone_as_it_is():
    torch.manual_seed(0)
    backbone = build_backbone("conv4", 1, 28)
    learner = Learner(backbone, build_method("lst", backbone.dim, 2, scale_and_shift=True))
    learned = {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}
    norms = {name for name, module in backbone.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    assert learned == {f"{name}.{part}" for name in norms for part in ("weight", "bias")}
    before = {name: value.clone() for name, value in backbone.named_parameters()}

    def images(*shape):
        return torch.randint(0, 256, (*shape, 28, 28, 1), dtype=torch.uint8)

    labels = torch.arange(2).repeat(3)
    episode = Episode(images(2, 1), images(6), images(8), labels, torch.zeros(8, dtype=torch.long))
    optimiser = torch.optim.SGD(learner.turn_parameters()["learner"], lr=0.1, weight_decay=0.1)
    learner(episode).backward()
    optimiser.step()
    moved = {name for name, value in backbone.named_parameters() if not torch.equal(value, before[name])}
    assert moved == learned


def test_a_backbone_without_normalisation_has_no_scales_and_shifts():
    with pytest.raises(HandfulError, match="this backbone has none"):
        Learner(torch.nn.Linear(4, 4), build_method("lst", 4, 2, scale_and_shift=True))
