"""EPNet, iLPC and ICI against loops of their formulas, and on cases made for them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from episodes import WAYS, make_episode, method
from test_adapting import accuracy, class_means, prepared, squares, two_moons, unit

from handful import HandfulError, build_method
from handful.methods.ici import incredibility, residual_projection


def naive_propagator(x, alpha):
    """P of a graph of points, its degrees and the spread of squared distances, by loops over pairs."""
    count = len(x)
    square = squares(x, x)
    pairs = torch.stack([square[i, j] for i in range(count) for j in range(count) if i != j])
    spread = pairs.std()
    weights = torch.zeros(count, count).double()
    for i in range(count):
        for j in range(count):
            if i != j:
                weights[i, j] = math.exp(-square[i, j] / spread)
    degrees = weights.sum(1) + 1e-4
    smooth = torch.stack(
        [torch.stack([weights[i, j] / (degrees[i] * degrees[j]).sqrt() for j in range(count)]) for i in range(count)]
    )
    return torch.linalg.inv(torch.eye(count).double() - alpha * smooth), degrees, spread


def naive_epnet(episode, transductive):
    support, others, query, labels = prepared(episode, transductive)
    x, given = torch.cat([support, others]), torch.eye(WAYS).double()[labels]
    propagator, degrees, spread = naive_propagator(x, 0.5)
    moved = propagator @ x
    second, second_degrees, second_spread = naive_propagator(moved, 0.2)
    if transductive:
        rows = second / second.sum(1, keepdim=True)
        return (rows[-len(query) :, : len(given)] @ given + 1e-6).log()
    answers = []
    for z in query:
        weights = torch.exp(-squares(z[None], x)[0] / spread)
        z = z + 0.5 * (weights / (weights.sum() + 1e-4).sqrt() / degrees.sqrt()) @ moved
        weights = torch.exp(-squares(z[None], moved)[0] / second_spread)
        row = 0.2 * (weights / (weights.sum() + 1e-4).sqrt() / second_degrees.sqrt()) @ second
        answers.append((row[: len(given)] @ given / (row.sum() + 1) + 1e-6).log())
    return torch.stack(answers)


def naive_fit(x, labels, start, steps):
    """A linear classifier by gradient descent in all dimensions; its mean loss of each point."""
    weights, bias = start / start.norm(dim=1, keepdim=True), torch.zeros(WAYS).double()
    speed, bias_speed, losses = 0, 0, torch.zeros(len(x)).double()
    for _ in range(steps):
        weights, bias = weights.detach().requires_grad_(), bias.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(x @ weights.T + bias, labels, reduction="none")
        losses += loss.detach() / steps
        slopes = torch.autograd.grad(loss.mean(), (weights, bias))
        speed, bias_speed = 0.9 * speed + slopes[0] + 5e-4 * weights, 0.9 * bias_speed + slopes[1] + 5e-4 * bias
        weights, bias = weights - speed, bias - bias_speed
    return weights.detach(), bias.detach(), losses


def naive_ilpc(episode, transductive, neighbours=15, best=3):
    """Points that are labelled for good leave the set and join the support, as in the authors' code."""
    support, others, query, labels = prepared(episode, transductive)
    rounds = math.ceil(len(others) / (WAYS * best))
    for _ in range(rounds):
        x = torch.cat([support, others])
        cosines = x @ x.T
        kept = torch.zeros(len(x), len(x)).double()
        for i in range(len(x)):
            order = sorted((j for j in range(len(x)) if j != i), key=lambda j, i=i: -float(cosines[i, j]))
            for j in order[:neighbours]:
                kept[i, j] = max(0.0, float(cosines[i, j])) ** 3
        weights = kept + kept.T
        root = weights.sum(1).rsqrt()
        reach = torch.linalg.inv(torch.eye(len(x)).double() - 0.8 * root[:, None] * weights * root)
        scores = (reach[:, : len(support)] @ torch.eye(WAYS).double()[labels])[len(support) :]
        if len(scores) == 0:
            break
        kernel, v = (scores / scores.sum(1, keepdim=True)) ** 3, torch.ones(WAYS).double()
        for _ in range(3000):
            v = len(kernel) / WAYS / (kernel.T @ (1 / (kernel @ v)))
        found = (kernel * v).argmax(1)
        loss = naive_fit(x, torch.cat([labels, found]), class_means(support, labels), 30)[2][len(support) :]
        chosen = []
        for n in range(WAYS):
            chosen += sorted((j for j in range(len(found)) if found[j] == n), key=lambda j: float(loss[j]))[:best]
        rest = [j for j in range(len(found)) if j not in chosen]
        support, labels = torch.cat([support, others[chosen]]), torch.cat([labels, found[chosen]])
        others, found = others[rest], found[rest]
    support, labels = torch.cat([support, others]), torch.cat([labels, found])
    weights, bias, _ = naive_fit(support, labels, class_means(support, labels), 100)
    return query @ weights.T + bias


def naive_doubt(x, labels, components):
    """Lengths of each point's own row in the regression, summed over falling penalties, row by row."""
    centred = x - x.mean(0)
    main = torch.linalg.svd(centred, full_matrices=False)[0][:, :components]
    residual, y = torch.eye(len(x)).double() - main @ main.T, torch.eye(WAYS).double()[labels]
    rows, total = torch.zeros_like(y), [0.0] * len(x)
    most = max(float((residual[i] @ y).norm()) for i in range(len(x)))
    for number in range(15):
        penalty = most * 0.01 ** (number / 14)
        for _ in range(10):
            moved = [rows[i] - residual[i] @ (rows - y) for i in range(len(x))]
            rows = torch.stack([row * max(0.0, 1 - penalty / float(row.norm())) for row in moved])
        total = [sum_ + float(row.norm()) for sum_, row in zip(total, rows, strict=True)]
    return total


def naive_ici(episode, transductive, best=3, rounds=3):
    support, others, query, given = prepared(episode, transductive)
    x, labels = support, given
    for number in range(1, rounds + 1):
        weights, bias, _ = naive_fit(x, labels, class_means(x, labels), 30)
        found = (others @ weights.T + bias).argmax(1)
        doubt = naive_doubt(torch.cat([support, others]), torch.cat([given, found]), 20)[len(support) :]
        chosen = []
        for n in range(WAYS):
            chosen += sorted((j for j in range(len(found)) if found[j] == n), key=lambda j, d=doubt: d[j])[
                : best * number
            ]
        x, labels = torch.cat([support, others[chosen]]), torch.cat([given, found[chosen]])
    weights, bias, _ = naive_fit(x, labels, class_means(x, labels), 100)
    return query @ weights.T + bias


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize(("name", "naive"), [("epnet", naive_epnet), ("ilpc", naive_ilpc), ("ici", naive_ici)])
def test_logits_are_those_of_a_loop_of_the_formula(name, naive, transductive):
    episode = make_episode(batch=(), unlabelled=20, spread=3.0, seed=6)
    found = method(name, transductive=transductive).eval()(episode)
    torch.testing.assert_close(found, naive(episode, transductive), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("epnet", {"label_alpha": 0.99, "alpha": 0.5, "cluster_scale": 2.0}), ("ilpc", {"neighbours": 4})],
)
def test_labels_follow_two_moons(name, options):
    episode = two_moons()
    plain = accuracy(build_method("pn", 2000, 2, cosine=True), episode)
    assert accuracy(build_method(name, 2000, 2, **options), episode) > max(0.9, plain + 0.1)


def test_queries_of_epnet_that_a_graph_has_seen_and_not_seen_nearly_agree():
    """One query in a graph of a hundred changes little, so the formula for a query outside of it must be near."""
    episode = make_episode(batch=(5,), unlabelled=100, queries=1, spread=2.0)
    outside, inside = (method("epnet", transductive=flag).eval()(episode) for flag in (False, True))
    assert (outside.log_softmax(-1) - inside.log_softmax(-1)).abs().max() < 0.1


def test_ilpc_labels_the_surest_first_and_all_in_the_end():
    episode = make_episode(batch=(30,), shots=1, unlabelled=80, spread=2.0)
    episode = replace(episode, unlabelled=episode.unlabelled[:, :60])  # those that are of a class
    labels = episode.unlabelled_labels[:, :60]
    model = method("ilpc")
    points = torch.cat([episode.support.flatten(1, 2), episode.unlabelled], 1)
    points = unit(unit(points) - unit(points).mean(1, keepdim=True))
    given = torch.nn.functional.pad(torch.eye(WAYS).double().clone(), (0, 0, 0, 60)).expand(30, -1, -1)
    found = model.label(points @ points.mT, given, WAYS)
    torch.testing.assert_close(found.sum(-1), torch.ones(30, 65).double())
    assert torch.equal(found[:, :WAYS], given[:, :WAYS])
    one_step = torch.cdist(episode.unlabelled, episode.centroids).argmin(-1)
    right = [(guess == labels).double().mean() for guess in (found[:, WAYS:].argmax(-1), one_step)]
    assert right[0] > right[1] + 0.05


def test_labels_that_are_wrong_are_the_least_credible():
    episode = make_episode(batch=(), unlabelled=80, spread=0.7, seed=1)
    points, labels = episode.unlabelled[:60], episode.unlabelled_labels[:60].clone()
    wrong = torch.arange(60) % 10 == 0
    labels[wrong] = (labels[wrong] + 1) % WAYS
    residual = residual_projection(points @ points.T, 8)
    doubt = incredibility(residual, torch.eye(WAYS).double()[labels])
    assert doubt[wrong].min() > doubt[~wrong].max()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("epnet", {"alpha": 1.0}, "alpha must be a number between 0 and 1, got 1.0"),
        ("epnet", {"label_alpha": 0.0}, "label_alpha must be a number between 0 and 1, got 0.0"),
        ("ilpc", {"alpha": 1.5}, "alpha must be a number between 0 and 1, got 1.5"),
        ("ilpc", {"power": 0.0}, "power must be a number above 0, got 0.0"),
        ("ilpc", {"best": 0}, "best must be at least 1, got 0"),
        ("ici", {"rounds": 0}, "rounds must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be_meant(name, options, sentence):
    with pytest.raises(HandfulError, match=sentence):
        method(name, **options)
