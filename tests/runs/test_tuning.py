"""Temperature and refinements, chosen on validation classes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from handful import build_method
from handful.runs import tuning
from handful.runs.episodes import Protocol
from handful.runs.tuning import MULTIPLIERS, tunable, tune, with_multiplier
from handful.sampling import EpisodeSpec

PROTOCOL = Protocol(EpisodeSpec(ways=5), 0.4, splits=2, episodes=50)


@pytest.fixture
def asked(monkeypatch):
    """Replaces the measurement: best at a cluster_scale of 6 and four refinements."""
    seen = []

    def evaluate(method, vectors, images, protocol, iterations):
        seen.append((method.cluster_scale, protocol.splits, protocol.episodes))
        steps = iterations + 1 if method.iterative else 1
        return SimpleNamespace(by_iteration=[50 - abs(method.cluster_scale - 6) - abs(i - 4) for i in range(steps)])

    monkeypatch.setattr(tuning, "evaluate", evaluate)
    return seen


def test_every_multiplier_is_tried_with_every_number_of_refinements(asked):
    method = build_method("tac", 8, 5, cluster_scale=3.0)
    found = tune(method, torch.zeros(1), None, PROTOCOL)
    assert (found.iterations, found.cluster_multiplier, found.trials, found.accuracy) == (4, 2.0, 35, 50)
    assert sorted(scale for scale, *_ in asked) == pytest.approx([0.3, 0.6, 1.5, 3, 6, 15, 30])
    assert {(splits, episodes) for _, splits, episodes in asked} == {(1, 100)}
    assert method.cluster_scale == 3.0, "the method itself is left alone"


def test_a_given_number_of_refinements_stays(asked):
    found = tune(build_method("soft-kmeans", 8, 5, cluster_scale=3.0), torch.zeros(1), None, PROTOCOL, 2)
    assert (found.iterations, found.cluster_multiplier, found.trials) == (2, 2.0, 7)


def test_of_equal_multipliers_the_nearest_to_one_is_taken(monkeypatch):
    monkeypatch.setattr(tuning, "evaluate", lambda *_: SimpleNamespace(by_iteration=[40.0, 50.0]))
    assert tune(build_method("tac", 8, 5), torch.zeros(1), None, PROTOCOL).cluster_multiplier == 1.0
    assert sorted(MULTIPLIERS) == [0.1, 0.2, 0.5, 1, 2, 5, 10]


@pytest.mark.parametrize("name", ["pn", "tapnet", "tpn", "relation", "classifier"])
def test_what_has_no_soft_labels_has_no_temperature(name, asked):
    method = build_method(name, 64, 5)
    assert not tunable(method)
    assert tune(method, torch.zeros(1), None, PROTOCOL).cluster_multiplier is None
    assert len(asked) == 1


def test_a_multiplier_shares_the_weights():
    method = build_method("tac", 8, 5, learn_scale=True, scale=2.0)
    other = with_multiplier(method, 5.0)
    assert other.references is method.references
    assert other.soft_scale.item() == pytest.approx(10.0)
