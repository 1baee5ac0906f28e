"""Matching and Siamese Networks against loops over pairs of images, and what sets them apart."""

from __future__ import annotations

import math

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import Episode


@pytest.mark.parametrize("shots", [1, 3])
def test_matching_networks_share_out_their_attention(shots):
    episode = make_episode(batch=(), shots=shots)
    found = torch.softmax(method("matching", scale=7.0).eval()(episode), -1)
    for q, query in enumerate(episode.query):
        attention = [
            [math.exp(7 * float(torch.cosine_similarity(query, image, dim=0))) for image in images]
            for images in episode.support
        ]
        total = sum(map(sum, attention))
        expected = [sum(row) / total for row in attention]
        torch.testing.assert_close(found[q], torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_matching_networks_tell_apart_a_class_of_two_kinds():
    """The mean of two opposite kinds says nothing of either; attention to single images does."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 2, DIM, generator=generator).double()
    centres[0, 1] = -centres[0, 0]
    noise = 0.1 * torch.randn(2, 2, DIM, generator=generator).double()
    labels = torch.tensor([0, 0, 1, 1])
    episode = Episode((centres + noise), centres.flatten(0, 1), centres[0, :0], labels, labels[:0])
    assert (method("matching", ways=2).eval()(episode).argmax(-1) == labels).all()
    assert (method("pn", ways=2, cosine=True).eval()(episode).argmax(-1) != labels).any()


def random_siamese():
    model = method("siamese", scale=0.7)
    with torch.no_grad():
        model.weight.copy_(torch.randn(DIM, generator=torch.Generator().manual_seed(1)))
        model.bias.fill_(0.3)
    return model


def naive_pairs(model, episode):
    def score(x, y):
        return 0.7 * (sum(w * abs(a - b) for w, a, b in zip(model.weight, x, y, strict=True)) + 0.3)

    rows = [[[score(x, y).item() for y in images] for images in episode.support] for x in episode.query]
    return torch.tensor(rows, dtype=torch.float64)


def test_siamese_networks_ask_of_every_pair():
    episode, model = make_episode(batch=(), queries=11), random_siamese()
    scores = naive_pairs(model, episode)
    torch.testing.assert_close(model(episode), scores.amax(-1), atol=1e-8, rtol=0)
    loss = 0.0
    for q, label in enumerate(episode.query_labels.tolist()):
        for n in range(WAYS):
            for score in scores[q, n].tolist():
                loss += (
                    0.5 * math.log1p(math.exp(-score)) if n == label else 0.5 / (WAYS - 1) * math.log1p(math.exp(score))
                )
    assert model.loss(episode).item() == pytest.approx(loss / (11 * episode.shots), abs=1e-8)


def test_siamese_networks_learn_which_components_matter():
    generator = torch.Generator().manual_seed(0)
    model = method("siamese")
    optimiser = torch.optim.Adam(model.parameters(), 0.05)

    def draw():
        centres = torch.randn(8, WAYS, DIM, generator=generator).double()
        centres[..., 5:] = 0  # the rest is noise

        def around(repeats):
            points = centres.repeat_interleave(repeats, 1)
            noise = torch.randn(points.shape, generator=generator).double()
            noise[..., :5] *= 0.2
            return points + 3 * noise * (torch.arange(DIM) >= 5) + noise * (torch.arange(DIM) < 5)

        labels = torch.arange(WAYS).repeat_interleave(4).expand(8, -1)
        return Episode(around(1).unsqueeze(2), around(4), centres[:, :0], labels, labels[:, :0])

    def accuracy():
        episode = draw()
        return (model.eval()(episode).argmax(-1) == episode.query_labels).double().mean()

    before = accuracy()
    for _ in range(80):
        optimiser.zero_grad()
        model.train().loss(draw()).backward()
        optimiser.step()
    assert accuracy() > before + 0.3
    assert model.weight[:5].mean() < model.weight[5:].mean() - 0.5
