"""BD-CSPN, LaplacianShot, PT-MAP, PADDLE and alpha-TIM: loops of their formulas, and what sets each apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from episodes import DIM, WAYS, make_episode, method

from handful import Episode, HandfulError, build_method
from handful.embedders.shipped import model_folder
from handful.estimator import rivals
from handful.estimator.shared import Shared
from handful.methods import METHODS
from handful.methods.pt_map import transport
from handful.runs.folder import load_run

ADAPTING = ["bd-cspn", "laplacian-shot", "pt-map", "paddle", "alpha-tim"]


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def prepared(episode, transductive=False, first=unit):
    """Support as a list of rows with their labels, the set, and the queries, around the mean of the first two."""
    support, others, query = (
        first(part) for part in (episode.support.flatten(0, 1), episode.unlabelled, episode.query)
    )
    if transductive:
        others = torch.cat([others, query])
    mean = torch.cat([support, others]).mean(0)
    labels = torch.arange(WAYS).repeat_interleave(episode.shots)
    return *(unit(part - mean) for part in (support, others, query)), labels


def class_means(support, labels):
    return torch.stack([support[labels == n].mean(0) for n in range(WAYS)])


def squares(points, means):
    return torch.stack([torch.stack([(x - m).square().sum() for m in means]) for x in points])


def naive_rectified(support, others, labels, scale=10.0, most=8):
    directions, means = unit(class_means(support, labels)), []
    for n in range(WAYS):
        rows = [(float(x @ directions[n]), x) for x in support[labels == n]]
        near = [(float(x @ directions[n]), x) for x in others if int((directions @ x).argmax()) == n]
        rows += sorted(near, key=lambda row: -row[0])[:most]
        total = sum(math.exp(scale * cosine) for cosine, _ in rows)
        means.append(sum(math.exp(scale * cosine) / total * x for cosine, x in rows))
    return torch.stack(means)


def naive_bd_cspn(episode, transductive, most=8):
    support, others, query, labels = prepared(episode, transductive)
    shift = support.mean(0) - others.mean(0)
    means = naive_rectified(support, unit(others + shift), labels, most=most)
    return 10 * unit(query + shift) @ unit(means).T


def naive_laplacian_shot(episode, transductive, weight=0.7, neighbours=3, steps=20):
    support, others, query, labels = prepared(episode, transductive)
    means = naive_rectified(support, unit(others + support.mean(0) - others.mean(0)), labels)
    points = torch.cat([support, others])
    fixed = torch.eye(WAYS).double()[labels]

    def near(x, skip=None):
        order = sorted((float((x - y).norm()), j) for j, y in enumerate(points) if j != skip)
        return [j for _, j in order[:neighbours]]

    graph, unary = [near(x, i) for i, x in enumerate(points)], -5 * squares(points, means)
    soft = torch.softmax(unary, 1)
    for _ in range(steps):
        soft = torch.cat([fixed, soft[len(fixed) :]])
        logits = torch.stack([unary[i] + weight * sum(soft[j] for j in graph[i]) for i in range(len(points))])
        soft = torch.softmax(logits, 1)
    if transductive:
        return logits[-len(query) :]
    soft = torch.cat([fixed, soft[len(fixed) :]])
    return torch.stack(
        [u + weight * sum(soft[j] for j in near(q)) for u, q in zip(-5 * squares(query, means), query, strict=True)]
    )


def naive_pt_map(episode, transductive, steps=20, rate=0.2):
    support, others, query, labels = prepared(episode, transductive, lambda x: unit(x.sign() * x.abs().sqrt()))
    means, fixed = class_means(support, labels), torch.eye(WAYS).double()[labels]
    for step in range(steps + 1):
        kernel, v = torch.exp(-10 * squares(others, means)), torch.ones(WAYS).double()
        for _ in range(2000):
            u = 1 / (kernel @ v)
            v = len(others) / WAYS / (kernel.T @ u)
        if step == steps:
            break
        plan = torch.cat([fixed, (kernel @ v).reciprocal()[:, None] * kernel * v])
        moved = torch.stack([(p[:, None] * torch.cat([support, others])).sum(0) / p.sum() for p in plan.T])
        means = (1 - rate) * means + rate * moved
    return -10 * squares(query, means) + v.log()


def naive_paddle(episode, transductive, steps=20, penalty=0.4):
    support, others, query, labels = prepared(episode, transductive)
    first = class_means(support, labels)
    means, bias = first, torch.zeros(WAYS).double()
    for _ in range(steps):
        soft = torch.softmax(-5 * squares(others, means) + bias, 1)
        bias = penalty * (soft.mean(0) + 1e-6).log()
        rows = [torch.cat([support[labels == n], others]) for n in range(WAYS)]
        weights = [torch.cat([torch.ones(episode.shots), soft[:, n]]) for n in range(WAYS)]
        means = torch.stack([(w[:, None] * x).sum(0) / w.sum() for w, x in zip(weights, rows, strict=True)])
    return -5 * squares(query, means) + bias


def naive_alpha_tim(episode, transductive, steps=30, rate=0.3, alpha=2.0):
    """By automatic differentiation, in all dimensions."""
    support, others, query, labels = prepared(episode, transductive)
    weights, speed = class_means(support, labels), 0
    for _ in range(steps):
        weights = weights.detach().requires_grad_()
        soft = torch.softmax(-7.5 * squares(others, weights), 1)
        loss = torch.nn.functional.cross_entropy(-7.5 * squares(support, weights), labels)
        loss = loss - (1 - (soft.mean(0) ** alpha).sum()) / (alpha - 1)
        loss = loss + ((1 - (soft**alpha).sum(1)) / (alpha - 1)).mean()
        speed = 0.9 * speed + torch.autograd.grad(loss, weights)[0] / 15
        weights = weights - rate * speed
    return -7.5 * squares(query, weights.detach())


NAIVE = {
    "bd-cspn": naive_bd_cspn,
    "laplacian-shot": naive_laplacian_shot,
    "pt-map": naive_pt_map,
    "paddle": naive_paddle,
    "alpha-tim": naive_alpha_tim,
}


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("name", ADAPTING)
def test_logits_are_those_of_a_loop_of_the_formula(name, transductive):
    episode = make_episode(batch=(), unlabelled=12, spread=3.0, seed=5)
    found = torch.log_softmax(method(name, transductive=transductive).eval()(episode), -1)
    expected = torch.log_softmax(NAIVE[name](episode, transductive), -1)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ADAPTING)
def test_transductive_queries_see_each_other_and_the_title_says_it(name):
    episode, model = make_episode(), method(name, transductive=True).eval()
    alone = replace(episode, query=episode.query[:, :1], query_labels=episode.query_labels[:, :1])
    assert not torch.allclose(model(alone), model(episode)[:, :1])
    assert model.title == f"{method(name).title} (transductive)"


def compared(name, x, given):
    """The probabilities of the estimator's rival of that name."""
    rows = rivals.unit(x)
    shared = Shared(x, rivals.unit(rows - rows.mean(0)))
    if name == "laplacian-shot":
        return rivals.laplacian_shot(shared, given, WAYS, [0.7])[0]
    return {"bd-cspn": rivals.bd_cspn, "pt-map": rivals.pt_map}[name](shared, given, WAYS)


@pytest.mark.parametrize(
    ("name", "options"), [("bd-cspn", {}), ("laplacian-shot", {"scale": 1.0, "rectify": False}), ("pt-map", {})]
)
def test_the_estimators_rivals_are_the_same_transductive(name, options):
    episode = make_episode(batch=(), queries=40, spread=4.0)
    x = torch.cat([episode.support.flatten(0, 1), episode.query]).numpy()
    given = np.full(len(x), -1)
    given[: 2 * WAYS] = np.repeat(np.arange(WAYS), 2)
    model = method(name, transductive=True, **options).eval()
    found = torch.softmax(model(episode.without_unlabelled()), -1)
    np.testing.assert_allclose(found.numpy(), compared(name, x, given)[2 * WAYS :], atol=1e-5)


def accuracy(model, episode, iterations=1):
    return (model.eval().trajectory(episode, iterations)[-1].argmax(-1) == episode.query_labels).double().mean().item()


def test_bd_cspn_undoes_a_shift_between_labelled_and_unlabelled_images():
    episode = make_episode(batch=(40,), shots=3, unlabelled=40, spread=1.0)
    shift = 5 * torch.randn(40, 1, DIM, generator=torch.Generator().manual_seed(1)).double()
    moved = replace(episode, query=episode.query + shift, unlabelled=episode.unlabelled + shift)
    plain, model = method("pn", cosine=True, scale=10.0), method("bd-cspn")
    assert accuracy(plain, moved) < accuracy(plain, episode) - 0.2
    assert accuracy(model, moved) > accuracy(plain, moved) + 0.15


def two_moons(count=60, dim=2000, width=0.15):
    """Half circles that reach into each other, one label each, as vectors whose inner products fall with distance."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.linspace(0, math.pi, count).double()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.4 - angle.sin()], 1)
    plane = torch.cat([upper, lower])
    directions = torch.randn(2, dim, generator=generator).double() / width
    vectors = torch.cos(plane @ directions + 2 * math.pi * torch.rand(dim, generator=generator).double())
    labels = torch.arange(2).repeat_interleave(count)
    place = torch.arange(2 * count) % count
    unlabelled, queries = place % 2 == 0, (place % 2 == 1) & (place != 1)
    support = torch.stack([vectors[1], vectors[count + 1]])[:, None]  # at one end of each
    return Episode(support, vectors[queries], vectors[unlabelled], labels[queries], labels[unlabelled])


def test_laplacian_shot_follows_two_moons():
    episode = two_moons()
    plain = accuracy(build_method("pn", 2000, 2, cosine=True), episode)
    model = build_method("laplacian-shot", 2000, 2, scale=1.0, rectify=False, steps=300)
    assert accuracy(model, episode) > max(0.95, plain + 0.1)


def test_transport_to_known_proportions():
    """Four of five points are of the first class: an even transport must mislabel some, one that knows does not."""
    logits = torch.tensor([[9.0, 0.0]] * 8 + [[6.0, 0.0]] * 8 + [[0.0, 0.0]] * 4).double()
    even = torch.softmax(logits + transport(logits), -1)
    torch.testing.assert_close(even.mean(0), torch.tensor([0.5, 0.5]).double())
    known = torch.softmax(logits + transport(logits, torch.tensor([0.8, 0.2]).double()), -1)
    torch.testing.assert_close(known.mean(0), torch.tensor([0.8, 0.2]).double())
    assert (even.argmax(1) == 0).sum() == 8
    assert (known.argmax(1) == 0).sum() == 16


def test_pt_map_evens_out_the_classes_of_the_set_and_can_be_told_not_to():
    episode = make_episode(batch=(20,), shots=1, unlabelled=50, spread=1.5)
    uneven = replace(episode, unlabelled=episode.unlabelled[:, :1] + 0.5 * episode.unlabelled)
    even, free = (method("pt-map", even_classes=flag) for flag in (True, False))
    assert even.title == "PT-MAP (even classes)" and free.title == "PT-MAP (classes of any size)"
    shares = [
        torch.softmax(model.eval()(replace(uneven, query=uneven.unlabelled)), -1).mean(1) for model in (even, free)
    ]
    torch.testing.assert_close(shares[0], torch.full_like(shares[0], 1 / WAYS), atol=1e-6, rtol=0)
    assert shares[1].std() > 0.05


def test_paddle_leaves_absent_classes_empty():
    episode = make_episode(batch=(60,), shots=1, unlabelled=60, queries=60, spread=1.8, seed=2)
    generator = torch.Generator().manual_seed(3)
    centres = episode.support[:, :2, 0] + 1.0 * torch.randn(60, 2, DIM, generator=generator).double()
    labels = torch.arange(2).repeat(30).expand(60, -1)
    points, queries = (
        torch.take_along_dim(centres, labels[..., None], 1)
        + 1.8 * torch.randn(60, 60, DIM, generator=generator).double()
        for _ in range(2)
    )
    only_two = replace(episode, unlabelled=points, query=queries, query_labels=labels)
    found = {penalty: accuracy(method("paddle", penalty=penalty), only_two) for penalty in (0.0, 1.0)}
    assert found[1.0] > found[0.0] + 0.05


def test_alpha_tim_minds_uneven_classes_less_than_tim():
    episode = make_episode(batch=(60,), shots=2, unlabelled=0, queries=0, spread=1.0, seed=4)
    generator = torch.Generator().manual_seed(5)
    labels = torch.tensor([0] * 40 + [1] * 5 + [2] * 3 + [3] * 2).expand(60, -1)
    centres = episode.support.mean(2)
    points, queries = (
        torch.take_along_dim(centres, labels[..., None], 1)
        + 1.8 * torch.randn(60, 50, DIM, generator=generator).double()
        for _ in range(2)
    )
    uneven = replace(episode, unlabelled=points, query=queries, query_labels=labels)
    tim, ours = (accuracy(method("alpha-tim", alpha=alpha), uneven) for alpha in (1.0001, 2.0))
    assert ours > tim + 0.02


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.training_free])
def test_the_backbone_of_any_run_will_do(name):
    folder = model_folder("tac-glyphs")
    _, own, _ = load_run(folder)
    _, learner, _ = load_run(folder, name)
    assert type(learner.method) is METHODS[name]
    assert not learner.method.state_dict()
    for ours, theirs in zip(own.backbone.parameters(), learner.backbone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("bd-cspn", {"most": 0}, "most must be at least 1, got 0"),
        ("laplacian-shot", {"weight": -1.0}, "weight must be a number from 0 up, got -1.0"),
        ("pt-map", {"power": 0.0}, "power must be a number above 0 and at most 1, got 0.0"),
        ("paddle", {"penalty": -0.5}, "penalty must be a number from 0 up, got -0.5"),
        ("alpha-tim", {"alpha": 0.0}, "alpha must be a number above 0, got 0.0"),
        ("alpha-tim", {"certainty": -1.0}, "certainty must be a number from 0 up, got -1.0"),
        ("alpha-tim", {"momentum": 1.0}, "rate must be above 0 and momentum from 0 to below 1"),
    ],
)
def test_options_that_cannot_be_meant(name, options, sentence):
    with pytest.raises(HandfulError, match=sentence):
        method(name, **options)


def test_alpha_at_one_is_the_limit_of_alphas_near_it():
    """There H_alpha is the entropy: TIM."""
    episode = make_episode(spread=3.0)
    near, at = (torch.log_softmax(method("alpha-tim", alpha=alpha).eval()(episode), -1) for alpha in (1 + 1e-7, 1.0))
    torch.testing.assert_close(near, at, atol=1e-5, rtol=0)
