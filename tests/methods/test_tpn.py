"""TPN: the closed form is the propagation it stands for, each query in a graph of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import HandfulError, build_method
from handful.methods.feature_maps import to_maps
from handful.methods.graph import gaussian_weights, propagate, propagate_each

ALPHA, NEIGHBOURS = 0.99, 20


def spelled_out(points, labels, neighbours=NEIGHBOURS, alpha=ALPHA):
    """S and F of one graph as the formulas are written, node by node, with an explicit inverse."""
    count = len(points)
    weights = torch.stack([torch.exp(-0.5 * (points - point).square().mean(-1)) for point in points])
    kept = torch.zeros_like(weights)
    for i in range(count):
        for j in weights[i].argsort(descending=True)[:neighbours]:
            kept[i, j] = kept[j, i] = weights[i, j]
    degrees = kept.sum(-1)
    spread = kept / (degrees[:, None] * degrees[None]).sqrt()
    return spread, torch.linalg.inv(torch.eye(count).double() - alpha * spread) @ labels


def graph_of(episode, query):
    """Nodes of one query's graph and their labels."""
    nodes = torch.cat([episode.support.flatten(0, 1), episode.unlabelled, query[None]])
    labels = torch.zeros(len(nodes), WAYS, dtype=torch.double)
    for index in range(WAYS * episode.shots):
        labels[index, index // episode.shots] = 1
    return nodes, labels


def plain(**options):
    """TPN with sigma = 1 for every point: its logits are those of the graph of the points themselves."""
    model = method("tpn", **options).eval()
    with torch.no_grad():
        for parameter in model.log_sigma[-1].parameters():
            parameter.zero_()
    return model


@pytest.mark.parametrize(
    ("shots", "unlabelled", "neighbours"), [(1, 100, 20), (5, 40, 20), (1, 40, 2), (1, 9, 20), (2, 9, 20)]
)
def test_closed_form_is_the_dense_inverse_of_each_querys_graph(shots, unlabelled, neighbours):
    episode = make_episode(batch=(), shots=shots, unlabelled=unlabelled, queries=12, spread=1.5)
    logits = plain(neighbours=neighbours)(episode)
    for query, answer in zip(episode.query, logits, strict=True):
        expected = spelled_out(*graph_of(episode, query), neighbours)[1][-1]
        assert (answer - expected).abs().max() <= 1e-8


def test_closed_form_is_the_limit_of_power_iterations():
    """F <- alpha S F + Y: 500 steps leave alpha^500 = 0.7 % of the start."""
    episode = make_episode(batch=(), shots=1, unlabelled=60, queries=5)
    logits = plain()(episode)
    for query, answer in zip(episode.query, logits, strict=True):
        nodes, labels = graph_of(episode, query)
        spread = spelled_out(nodes, labels)[0]
        flow, steps = labels, 500
        for _ in range(steps):
            flow = ALPHA * spread @ flow + labels
        left = ALPHA ** (steps + 1) / (1 - ALPHA)  # what is missing of the series, at most
        assert (answer - flow[-1]).abs().max() <= left
        assert flow[-1].argmax() == answer.argmax()


def test_power_iterations_at_a_smaller_alpha_agree_to_the_last_digit():
    episode = make_episode(batch=(), shots=1, unlabelled=60, queries=5)
    logits = plain(alpha=0.9)(episode)
    for query, answer in zip(episode.query, logits, strict=True):
        nodes, labels = graph_of(episode, query)
        spread = spelled_out(nodes, labels)[0]
        flow = labels
        for _ in range(500):
            flow = 0.9 * spread @ flow + labels
        assert (answer - flow[-1]).abs().max() <= 1e-12


def test_one_graph_is_the_dense_inverse_too():
    episode = make_episode(batch=(), shots=2, unlabelled=30, queries=25)
    nodes, labels = graph_of(episode, episode.query[0])
    nodes = torch.cat([nodes, episode.query[1:]])
    labels = torch.nn.functional.pad(labels, (0, 0, 0, 24))
    expected = spelled_out(nodes, labels)[1]
    model = plain(transductive=True)
    assert (model(episode) - expected[-25:]).abs().max() <= 1e-8
    assert model.title == "TPN (transductive)"
    rows = torch.cat([expected[: 2 * WAYS], expected[-25:]])
    targets = torch.cat([torch.arange(WAYS).repeat_interleave(2), episode.query_labels])
    torch.testing.assert_close(model.loss(episode), torch.nn.functional.cross_entropy(rows, targets))


def test_queries_see_each_other_only_where_asked_for():
    episode = make_episode()
    alone = replace(episode, query=episode.query[:, :1], query_labels=episode.query_labels[:, :1])
    together = method("tpn", transductive=True).eval()
    assert not torch.allclose(together(alone), together(episode)[:, :1])
    single = method("tpn").eval()
    torch.testing.assert_close(single(alone), together(alone))


@pytest.mark.parametrize("name", [{}, {"transductive": True}])
def test_a_disconnected_graph_gives_finite_logits(name):
    """Classes, unlabelled points and queries so far apart that every weight between them is 0 in floating point."""
    episode = make_episode(batch=(), unlabelled=30, dtype=torch.float32)
    far = replace(
        episode, support=episode.support * 1e4, unlabelled=episode.unlabelled * 1e6, query=episode.query * 1e8
    )
    model = plain(**name).float()
    logits = model(far)
    assert logits.isfinite().all()
    assert (logits == 0).all(), "nothing reaches the queries"
    assert model.loss(far).isfinite()


def test_sharper_scales_follow_a_point_whatever_the_others_are():
    """sigma is learned per image: halving the vectors of an episode changes the answer."""
    episode, model = make_episode(batch=()), method("tpn").eval()
    halved = replace(episode, support=episode.support / 2, query=episode.query / 2, unlabelled=episode.unlabelled / 2)
    assert not torch.allclose(model(episode), model(halved))


def test_a_graph_that_is_hard_to_solve_is_solved_in_float64():
    """At alpha = 0.99999 float32 alone would lose all but two digits."""
    episode = make_episode(batch=(), unlabelled=60, spread=0.5)
    single = replace(episode, **{name: getattr(episode, name).float() for name in ("support", "query", "unlabelled")})
    wide, narrow = plain(alpha=0.99999)(episode), plain(alpha=0.99999).float()(single)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=1e-3)


def test_gradients_of_both_forms():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(9, 4, generator=generator, dtype=torch.double).requires_grad_()
    labels = torch.eye(9, 3, dtype=torch.double)

    def together(points):
        return propagate(gaussian_weights(points, points, 0.1), labels, 0.9, 4)

    def each(points):
        nodes, query = points[:7], points[7:]
        return propagate_each(gaussian_weights(nodes, nodes, 0.1), gaussian_weights(query, nodes, 0.1), 0.9, 4)

    assert torch.autograd.gradcheck(together, points)
    assert torch.autograd.gradcheck(each, points)


def test_options_are_checked():
    with pytest.raises(HandfulError, match="alpha must be a number between 0 and 1, got 1"):
        build_method("tpn", DIM, WAYS, alpha=1)
    with pytest.raises(HandfulError, match="neighbours must be at least 2, got 1"):
        build_method("tpn", DIM, WAYS, neighbours=1)
    with pytest.raises(HandfulError, match="vectors of length 20 are no square maps of 3 channels"):
        build_method("tpn", DIM, WAYS, channels=3)
    build_method("tpn", 1600, WAYS, channels=64)


def test_published_tpn_equals_a_naive_graph_for_each_query():
    """Loops and an explicit inverse; sigma is the network's output as it is."""
    episode, model = make_episode(batch=(), unlabelled=20), method("tpn", form="published").eval()
    assert (model.alpha, model.neighbours) == (0.99, 20)
    shared = torch.cat([episode.support.flatten(0, 1), episode.unlabelled])
    for query, row in zip(episode.query, model(episode), strict=True):
        points = torch.cat([shared, query[None]])
        sigma = model.log_sigma(to_maps(points, model.map_shape))
        scaled = points / sigma
        count = len(points)
        weights = torch.empty(count, count, dtype=torch.float64)
        for i in range(count):
            for j in range(count):
                weights[i, j] = torch.exp(-(scaled[i] - scaled[j]).square().mean() / 2)
        kept = torch.zeros(count, count, dtype=torch.bool)
        for i in range(count):
            kept[i, weights[i].topk(20).indices] = True
        weights = torch.where(kept | kept.mT, weights, 0.0)
        degree = weights.sum(1)
        normal = weights / torch.sqrt(degree[:, None] * degree[None, :])
        labels = torch.zeros(count, 5, dtype=torch.float64)
        for i in range(10):
            labels[i, i // 2] = 1
        expected = torch.linalg.inv(torch.eye(count) - 0.99 * normal) @ labels
        torch.testing.assert_close(row, expected[-1], atol=1e-6, rtol=1e-6)
