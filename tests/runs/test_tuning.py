"""Temperature and refinements, chosen on validation classes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from handful import HandfulError, build_method
from handful.embedders.shipped import model_folder
from handful.methods import METHODS
from handful.runs import tuning
from handful.runs.episodes import Protocol
from handful.runs.evaluation import evaluate_run
from handful.runs.tuning import MULTIPLIERS, TRIALS, search, trial_values, tunable, tune, with_multiplier
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
    assert (found.iterations, found.cluster_multiplier, found.trials, found.accuracy) == (4, 2.0, 40, 50)
    assert sorted(scale for scale, *_ in asked) == pytest.approx([0.09, 0.3, 0.6, 1.5, 3, 6, 15, 30])
    assert {(splits, episodes) for _, splits, episodes in asked} == {(1, 100)}
    assert method.cluster_scale == 3.0, "the method itself is left alone"


def test_a_given_number_of_refinements_stays(asked):
    found = tune(build_method("soft-kmeans", 8, 5, cluster_scale=3.0), torch.zeros(1), None, PROTOCOL, 2)
    assert (found.iterations, found.cluster_multiplier, found.trials) == (2, 2.0, 8)


def test_of_equal_multipliers_the_nearest_to_one_is_taken(monkeypatch):
    monkeypatch.setattr(tuning, "evaluate", lambda *_: SimpleNamespace(by_iteration=[40.0, 50.0]))
    assert tune(build_method("tac", 8, 5), torch.zeros(1), None, PROTOCOL).cluster_multiplier == 1.0
    assert sorted(MULTIPLIERS) == [0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10]


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


# --- searches over what a method declares


@pytest.mark.parametrize("name", METHODS)
def test_trials_are_as_many_for_every_method_and_all_different(name):
    method = build_method(name, 64, 3)
    sets = trial_values(method, 12)
    assert sets[0] == {option: getattr(method, option) for option in method.tunables}
    assert len({tuple(values.items()) for values in sets}) == len(sets) == (12 if method.tunables else 1)
    for option, tried in method.tunables.items():
        unit = getattr(method, option) if tried.kind == "factor" else 1
        values = [chosen[option] / unit for chosen in sets[1:]]
        assert tried.low <= min(values) < max(values) <= tried.high
        assert isinstance(sets[1][option], int) == (tried.kind == "whole")
        if tried.kind != "whole":  # every third of the range is visited
            shares = [(v - tried.low) / (tried.high - tried.low) if tried.kind == "number"
                      else math.log(v / tried.low) / math.log(tried.high / tried.low) for v in values]  # fmt: skip
            assert {int(3 * share) for share in shares} >= {0, 1, 2}


def test_a_search_takes_the_best_trial_and_leaves_the_method_alone(monkeypatch):
    seen = []

    def evaluate(method, vectors, images, protocol, iterations, progress=None):
        seen.append((method.shrinkage, iterations, protocol.episodes))
        return SimpleNamespace(mean=50 - abs(method.shrinkage - 0.3), iterations=iterations)

    monkeypatch.setattr(tuning, "evaluate", evaluate)
    method = build_method("tac-free", 64, 5)
    found = search(method, torch.zeros(1), None, PROTOCOL, 12)
    assert found.trials == len(seen) == 12
    assert abs(found.values["shrinkage"] - 0.3) == min(abs(shrinkage - 0.3) for shrinkage, *_ in seen)
    assert found.iterations == found.values["iterations"]
    assert {episodes for *_, episodes in seen} == {100}
    assert method.shrinkage == 0.7


def test_of_equal_trials_the_methods_own_values_are_taken(monkeypatch):
    monkeypatch.setattr(tuning, "evaluate", lambda *_, **__: SimpleNamespace(mean=40.0, iterations=1))
    assert search(build_method("paddle", 64, 5), torch.zeros(1), None, PROTOCOL, 5).values["penalty"] == 0.4


def test_what_has_nothing_to_tune_needs_no_trial(monkeypatch):
    monkeypatch.setattr(tuning, "evaluate", None)
    assert search(build_method("pn", 64, 5), torch.zeros(1), None, PROTOCOL, 5).trials == 0


def test_a_run_is_measured_with_what_a_search_has_chosen():
    folder, protocol = model_folder("tac-glyphs"), Protocol(EpisodeSpec(5, 1, 5, 5), 0.4, 1, 6)
    found = evaluate_run(folder, protocol, method="paddle", trials=3, device="cpu")
    assert (found.trials, set(found.values)) == (3, {"scale", "penalty"})
    tuned = evaluate_run(folder, protocol, method="matching", tuned=True, device="cpu")
    assert (tuned.trials, set(tuned.values)) == (TRIALS, {"scale"}), "as many as methods of soft labels get"
    own = evaluate_run(folder, protocol, trials=3, device="cpu")
    assert (own.method, own.trials, own.iterations) == ("tac", 3, own.values["iterations"])


def test_the_backbone_alone_with_a_method_of_given_options():
    folder, protocol = model_folder("tac-glyphs"), Protocol(EpisodeSpec(5, 1, 5, 5), 0.4, 1, 6)
    found = evaluate_run(folder, protocol, method="pn", options={"cosine": True}, device="cpu")
    assert found.method == "pn"
    with pytest.raises(HandfulError, match="has parameters to learn"):
        evaluate_run(folder, protocol, method="tac", options={}, device="cpu")
