"""The classifier of the training classes: what it is trained for, and how it tells new classes apart."""

from __future__ import annotations

import torch
from episodes import DIM, WAYS, make_episode, method

from handful.runs.episodes import episode_accuracies
from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled


def test_its_loss_is_that_of_naming_every_image():
    episode, model = make_episode(batch=()), method("classifier")
    points = torch.cat([episode.support.flatten(0, 1), episode.query])
    labels = torch.cat([torch.arange(WAYS).repeat_interleave(2), episode.query_labels])
    expected = torch.nn.functional.cross_entropy(points @ model.head.weight.T + model.head.bias, labels)
    torch.testing.assert_close(model.loss(episode), expected)


def test_it_keeps_the_mean_of_the_training_images():
    first, second, model = make_episode(batch=()), make_episode(batch=(), seed=1), method("classifier")
    means = [torch.cat([episode.support.flatten(0, 1), episode.query]).mean(0) for episode in (first, second)]
    model.loss(first)
    torch.testing.assert_close(model.centre, means[0])
    model.loss(second)
    torch.testing.assert_close(model.centre, 0.99 * means[0] + 0.01 * means[1])
    model.eval().loss(first)
    torch.testing.assert_close(model.centre, 0.99 * means[0] + 0.01 * means[1])


def test_new_classes_are_told_apart_by_cosines_around_that_mean():
    episode, model = make_episode(batch=()), method("classifier-semi").eval()
    model.centre.copy_(torch.ones(DIM))
    support, query, unlabelled = (part - 1 for part in (episode.support, episode.query, episode.unlabelled))
    means = (support / support.norm(dim=-1, keepdim=True)).mean(1)
    points = unlabelled / unlabelled.norm(dim=-1, keepdim=True)
    soft = torch.softmax(10 * torch.cosine_similarity(points[:, None], means[None], dim=-1), 1)
    refined = (2 * means + soft.T @ points) / (2 + soft.sum(0)[:, None])
    for step, centres in enumerate((means, refined)):
        expected = 10 * torch.cosine_similarity(query[:, None], centres[None], dim=-1)
        torch.testing.assert_close(model.trajectory(episode, 1)[step], expected)


def test_a_shared_direction_does_not_matter_once_it_is_known():
    """Points whose length varies much more along what they share than their classes differ."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(20)
    points = torch.randn(10, DIM, generator=generator)[labels] + 1.2 * torch.randn(200, DIM, generator=generator)
    vectors = points + 20
    sampler = EpisodeSampler(
        split_labelled(labels.numpy(), tuple(map(str, range(10))), 0.5, 0), EpisodeSpec(5, 1, 5, 5), 0
    )
    model = method("classifier-semi").float()
    before = episode_accuracies(model, vectors, sampler, 50, 2).mean(0)
    model.centre.copy_(vectors.mean(0))
    after = episode_accuracies(model, vectors, sampler, 50, 2).mean(0)
    assert after[2] > before[2] + 3, "without it, all soft labels are alike"


def test_a_cosine_head_names_the_training_classes_by_scaled_cosines():
    episode, model = make_episode(batch=()), method("classifier", head="cosine")
    points = torch.cat([episode.support.flatten(0, 1), episode.query])
    labels = torch.cat([torch.arange(WAYS).repeat_interleave(2), episode.query_labels])
    logits = 10 * torch.cosine_similarity(points[:, None], model.head.weight[None], dim=-1)
    torch.testing.assert_close(model.loss(episode), torch.nn.functional.cross_entropy(logits, labels))
    assert not model.centre.any(), "it has learned where the origin is"
