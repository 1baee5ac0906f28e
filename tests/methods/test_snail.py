"""SNAIL against one sequence at a time, position by position, and a task that only its labels can solve."""

from __future__ import annotations

import math

import pytest
import torch
from episodes import WAYS, make_episode, method

from handful import HandfulError
from handful.methods.snail import Attention, Convolution


def naive(model, episode):
    """Each query behind the sorted support, through the layers at every position."""
    marks = torch.eye(model.ways).double()
    rank = sorted(range(WAYS), key=lambda n: float(episode.centroids[n] @ model.direction))
    place = {n: rank.index(n) for n in range(WAYS)}
    images = [(float(x @ model.direction), x, place[n]) for n in range(WAYS) for x in episode.support[n]]
    entries = [torch.cat([model.embed(x), marks[p]]) for _, x, p in sorted(images, key=lambda image: image[0])]
    answers = []
    for query in episode.query:
        sequence = [*entries, torch.cat([model.embed(query), 0 * marks[0]])]
        for layer in model.layers:
            found = []
            for t, x in enumerate(sequence):
                if isinstance(layer, Convolution):
                    past = sequence[t - layer.dilation] if t >= layer.dilation else torch.zeros_like(x)
                    out = layer.kernel(torch.cat([past, x]))
                    new = torch.tanh(out[: layer.filters]) * torch.sigmoid(out[layer.filters :])
                else:
                    ask, seen = layer.asks(x), sequence[: t + 1]
                    match = torch.stack([ask @ layer.keys(y) / math.sqrt(layer.keys.out_features) for y in seen])
                    new = sum(w * layer.values(y) for w, y in zip(torch.softmax(match, 0), seen, strict=True))
                found.append(torch.cat([x, new]))
            sequence = found
        out = model.head(sequence[-1])
        answers.append(torch.stack([0.6 * out[place[n]] for n in range(WAYS)]))
    return torch.stack(answers).detach()


@pytest.mark.parametrize(("ways", "length"), [(WAYS, 4), (7, 32)])
def test_logits_are_those_of_one_sequence_for_each_query(ways, length):
    episode, model = make_episode(batch=(), queries=3), method("snail", ways=ways, length=length, filters=6, scale=0.6)
    torch.testing.assert_close(model.eval()(episode).detach(), naive(model, episode), atol=1e-8, rtol=0)
    kinds = [type(layer) for layer in model.layers]
    assert kinds.count(Attention) == 3
    assert kinds.count(Convolution) == 2 * math.log2(length)


def test_the_order_of_labelled_images_does_not_matter():
    episode, model = make_episode(), method("snail").eval()
    flipped = type(episode)(**{**vars(episode), "support": episode.support.flip(2)})
    torch.testing.assert_close(model(flipped), model(episode))


def test_it_learns_to_read_labels():
    """Classes are drawn anew each time: without the labels of the sequence, a query could be of any."""
    model = method("snail", filters=8, length=8).float()
    optimiser = torch.optim.Adam(model.parameters(), 0.003)
    losses = []
    for step in range(120):
        optimiser.zero_grad()
        loss = model.train().loss(make_episode(batch=(16,), spread=0.3, seed=step, dtype=torch.float32))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.5 * math.log(WAYS) < losses[0]


def test_more_ways_than_outputs_is_said_in_a_sentence():
    with pytest.raises(HandfulError, match="5 ways need as many outputs, but this model has 3"):
        method("snail", ways=3).eval()(make_episode())
    with pytest.raises(HandfulError, match="length must be at least 2, got 1"):
        method("snail", length=1)
