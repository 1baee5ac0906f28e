"""PT-MAP, BD-CSPN, LaplacianShot and TIM, transductive, against the formulas of EasyFSL, written anew from its code.

EasyFSL (sicara/easy-few-shot-learning) has no unlabelled set: its methods adapt to the queries. Where ours differ by
default, an option makes them the same; what is left, unit vectors after a shift, moves the accuracy by 0.1 at most.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize, one_hot

from handful import Episode, build_method
from handful.methods.adapting import Task, centred
from handful.methods.pt_map import power_transform

WAYS, DIM, QUERIES, EPISODES = 5, 64, 75, 200


def cosines(points, means):
    return normalize(points, dim=-1) @ normalize(means, dim=-1).mT


def one_hot_support(support):
    return torch.eye(WAYS).repeat_interleave(support.shape[-2], 0)


def rectified_means(support, query):
    """Support and shifted queries of the class that is nearest, weighted by exp(cosine)."""
    own, labels = support.flatten(1, 2), one_hot_support(support)
    means, moved = support.mean(2), query + own.mean(1, keepdim=True) - query.mean(1, keepdim=True)
    known = cosines(own, means).exp() * labels
    found = cosines(moved, means)
    found = found.exp() * one_hot(found.argmax(-1), WAYS)
    total = known.sum(1, keepdim=True) + found.sum(1, keepdim=True)
    return (known / total).mT @ own + (found / total).mT @ moved


def bd_cspn(support, query):
    return cosines(query, rectified_means(support, query))


def laplacian_shot(support, query, weight=0.7, nearest=3, steps=20):
    """Of the three nearest queries, the first is the query itself."""
    far = torch.cdist(query, rectified_means(support, query)).square()
    near = torch.cdist(query, query).topk(nearest, largest=False).indices[..., 1:]
    graph = torch.zeros(*query.shape[:2], query.shape[1]).scatter_(2, near, 1.0)
    soft = torch.softmax(-far, -1)
    for _ in range(steps):
        soft = torch.softmax(weight * graph @ soft - far, -1)
    return soft


def pt_map(support, query, steps=10, rate=0.2, sharpness=10.0):
    own, labels = support.flatten(1, 2), one_hot_support(support).expand(len(support), -1, -1)
    means = support.mean(2)

    def plan():
        found = torch.exp(-sharpness * torch.cdist(query, means).square())
        for _ in range(1000):
            before = found.sum(2, keepdim=True)
            found = found / before
            found = found * (query.shape[1] / WAYS) / found.sum(1, keepdim=True)
            if (before - found.sum(2, keepdim=True)).abs().max() < 1e-6:
                break
        return found

    for _ in range(steps):
        shares = torch.cat([labels, plan()], 1)
        wanted = shares.mT @ torch.cat([own, query], 1) / shares.sum(1).unsqueeze(-1)
        means = means + rate * (wanted - means)
    return plan()


def tim(support, query, steps=60, temperature=10.0):
    """EasyFSL's loss. Its Adam depends on the axes; by the same steps as ours the formulas alone are compared."""
    own, labels = support.flatten(1, 2), one_hot_support(support)
    means = support.mean(2).clone().requires_grad_()
    optimiser = torch.optim.SGD([means], lr=1 / temperature, momentum=0.9)
    for _ in range(steps):
        known = torch.log_softmax(temperature * cosines(own, means), -1)
        soft = torch.softmax(temperature * cosines(query, means), -1)
        spread = soft.mean(1)
        loss = -(labels * known).sum(-1).mean(1) + (spread * spread.log()).sum(-1)
        loss = loss - 0.1 * (soft * (soft + 1e-12).log()).sum(-1).mean(1)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
    return cosines(query, means).detach()


SAME = {
    "pt-map": (pt_map, {"steps": 10}),
    "bd-cspn": (bd_cspn, {"cluster_scale": 0.1, "most": QUERIES, "move_queries": False}),
    "laplacian-shot": (
        laplacian_shot,
        {"scale": 2.0, "neighbours": 2, "rectify_scale": 1.0, "most": QUERIES, "labelled_neighbours": False},
    ),
    "alpha-tim": (tim, {"scale": 10.0, "alpha": 1.0, "certainty": 0.1, "cosine": True, "rate": 1.0, "steps": 60}),
}


def made(shots: int) -> Episode:
    """Classes that overlap: with one shot, about half of the queries are nearest to the support of another class."""
    generator = torch.Generator().manual_seed(shots)
    centres = torch.randn(EPISODES, WAYS, DIM, generator=generator)

    def around(labels):
        points = torch.gather(centres, 1, labels[..., None].expand(-1, -1, DIM))
        return points + 3.0 * torch.randn(points.shape, generator=generator)

    query_labels = torch.arange(WAYS).repeat_interleave(QUERIES // WAYS).expand(EPISODES, -1)
    support = around(torch.arange(WAYS).repeat_interleave(shots).expand(EPISODES, -1))
    support = support.reshape(EPISODES, WAYS, shots, DIM)
    none = torch.empty(EPISODES, 0, DIM)
    return Episode(support, around(query_labels), none, query_labels, torch.empty(EPISODES, 0, dtype=torch.long))


def accuracy(logits, episode):
    return 100 * float((logits.argmax(-1) == episode.query_labels).double().mean())


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("name", SAME)
def test_the_accuracy_is_that_of_easyfsls_formula(name, shots):
    formula, options = SAME[name]
    episode = made(shots)
    parts = (episode.support, episode.query, episode.query)
    task = centred(Task(*(power_transform(part, 0.5) if name == "pt-map" else part for part in parts)))
    theirs = accuracy(formula(task.support, task.query), episode)
    with torch.inference_mode():
        ours = accuracy(build_method(name, DIM, WAYS, transductive=True, **options).eval()(episode), episode)
    assert 30 < theirs < 95, "neither chance nor too easy"
    assert ours == pytest.approx(theirs, abs=0.1)
