"""MAML on vectors and on images: its steps are those of gradient descent, and its model stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from episodes import WAYS, make_episode, method
from torch.nn.functional import cross_entropy, normalize

from handful import Episode, HandfulError, build_method
from handful.embedders.backbones import build_backbone, to_input
from handful.runs.learner import Learner


def fine_tuned(backbone, support, query, shots, steps, rate=0.01, scale=10.0):
    """Backbone and classifier of one task by plain gradient descent; query logits."""
    labels = torch.arange(WAYS).repeat_interleave(shots)
    with torch.no_grad():
        weight = normalize(normalize(backbone(support), dim=1).reshape(WAYS, shots, -1).mean(1), dim=1)
    weight, bias = weight.requires_grad_(), torch.zeros(WAYS, dtype=weight.dtype, requires_grad=True)
    optimiser = torch.optim.SGD([*backbone.parameters(), weight, bias], rate)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(scale * (normalize(backbone(support), dim=1) @ weight.T + bias), labels).backward()
        optimiser.step()
    return (scale * (normalize(backbone(query), dim=1) @ weight.T + bias)).detach()


def test_on_vectors_the_classifier_alone_adapts():
    episode, model = make_episode(batch=(), spread=2.0), method("maml", rate=0.05, test_steps=7).eval()
    expected = fine_tuned(torch.nn.Identity(), episode.support.flatten(0, 1), episode.query, 2, 7, rate=0.05)
    torch.testing.assert_close(model(episode), expected, atol=1e-8, rtol=0)


def image_task(episodes=2, shots=2, queries=6):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randint(256, (*shape, 28, 28, 1), generator=generator, dtype=torch.uint8)

    labels = torch.randint(WAYS, (episodes, queries), generator=generator)
    return Episode(draw(episodes, WAYS, shots), draw(episodes, queries), draw(episodes, 0), labels, labels[:, :0])


@pytest.fixture
def learner():
    torch.manual_seed(0)
    backbone = build_backbone("conv4", 1, 28, width=8)
    return Learner(backbone, build_method("maml", backbone.dim, WAYS, steps=2, test_steps=3))


def test_images_adapt_the_backbone_and_leave_the_model_as_it_was(learner):
    task, method_ = image_task(), learner.eval().method
    before = copy.deepcopy(learner.state_dict())
    with torch.inference_mode():
        found = method_(task)
    for index in range(2):
        backbone = copy.deepcopy(learner.backbone)
        support, query = to_input(task.support[index].flatten(0, 1)), to_input(task.query[index])
        expected = fine_tuned(backbone, support, query, 2, 3)
        torch.testing.assert_close(found[index], expected, atol=1e-4, rtol=1e-4)
        assert not torch.equal(next(backbone.parameters()), next(learner.backbone.parameters())), "it has adapted"
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())
    assert "method" not in str(list(learner.state_dict()))


@pytest.mark.parametrize("first_order", [False, True])
def test_training_moves_the_backbone_through_the_steps(learner, first_order):
    learner.method.first_order = first_order
    loss = learner.train()(image_task())
    loss.backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in learner.backbone.parameters())
    assert sum(value.grad.abs().sum() for value in learner.backbone.parameters()) > 0


def test_second_order_gradients_are_those_of_finite_differences():
    episode = make_episode(batch=(), ways=3, queries=4, unlabelled=0, spread=1.5)
    model = method("maml", ways=3, rate=0.05, steps=3).train()

    def loss(query):
        return model.loss(
            Episode(episode.support, query, episode.unlabelled, episode.query_labels, episode.unlabelled_labels)
        )

    assert torch.autograd.gradcheck(loss, episode.query.clone().requires_grad_())


def test_validation_sees_images(learner, blobs):
    from handful.runs.training import validate
    from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled

    images = blobs["val"]
    torch.manual_seed(0)
    size, channels = images.images.shape[1], images.images.shape[3]
    backbone = build_backbone("conv4", channels, size, width=8)
    model = Learner(backbone, build_method("maml", backbone.dim, 2, test_steps=1))
    split = split_labelled(images.labels, images.class_names, 0.5, 0)
    accuracy, others = validate(model, images, EpisodeSampler(split, EpisodeSpec(2, 1, 2, 0), 0), 3)
    assert 0 <= accuracy.mean <= 100
    assert others == {}


def test_options_that_cannot_be_meant():
    assert method("maml", first_order=True).title == "MAML (first order)"
    with pytest.raises(HandfulError, match=r"rate must be a number above 0, got 0\.0"):
        method("maml", rate=0.0)
    with pytest.raises(HandfulError, match="steps must be at least 0, got -1"):
        method("maml", steps=-1)
