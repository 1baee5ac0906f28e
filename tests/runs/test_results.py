"""A result: what was measured goes into a file and comes out again the same, or as a sentence."""

from __future__ import annotations

import json
import shutil

import pytest

from handful.embedders.shipped import model_folder
from handful.runs.episodes import Protocol
from handful.runs.evaluation import evaluate_run
from handful.runs.results import Result, Unsound
from handful.sampling import EpisodeSpec

SPEC = EpisodeSpec(ways=5, shots=1, queries=3, unlabelled=4)
# What 'handful evaluate --json' has always printed, in this order.
NAMES = [
    "method", "title", "run", "dataset", "data_options", "fingerprint", "protocol", "seed", "n", "mean", "interval",
    "split_means", "split_interval", "episodes", "iterations", "by_iteration", "intervals", "iterations_chosen_on",
    "cluster_multiplier", "trials", "values", "trained", "wall_seconds", "episodes_per_second",
    "processor_seconds", "torch", "split",
]  # fmt: skip


@pytest.fixture(scope="module")
def result() -> Result:
    return evaluate_run(model_folder("tac-glyphs"), Protocol(SPEC, 0.4, 1, 4), iterations=1, device="cpu")


def test_a_result_goes_through_a_file(result):
    content = json.loads(json.dumps(result.to_json()))
    assert list(content) == NAMES
    assert set(content["trained"]) == {"method", "episodes", "episodes_planned", "spec", "val_accuracy", "seed"}
    assert Result.from_json(content) == result


def test_a_look_at_validation_classes_is_not_kept(result, tmp_path):
    run = shutil.copytree(model_folder("tac-glyphs"), tmp_path / "run")
    protocol = Protocol(SPEC, 0.4, 1, 4)
    found = evaluate_run(run, protocol, iterations=1, device="cpu", split="val")
    assert (found.split, result.split) == ("val", "test")
    assert found.fingerprint != result.fingerprint
    assert not (run / "results").exists()
    evaluate_run(run, protocol, iterations=1, device="cpu")
    assert len(list((run / "results").iterdir())) == 1


def test_one_episode_has_no_interval():
    found = evaluate_run(model_folder("tac-glyphs"), Protocol(SPEC, 0.4, 1, 1), iterations=1, device="cpu")
    assert (found.interval, found.intervals, found.split_interval) == (None, None, None)
    assert Result.from_json(found.to_json()) == found


def test_a_result_may_say_more_or_a_little_less(result):
    content = result.to_json()
    for name in ("torch", "cluster_multiplier", "trials", "values"):  # as older versions wrote it
        del content[name]
    assert Result.from_json({**content, "from_a_later_version": 1}).mean == result.mean
    with pytest.raises(Unsound, match="a result without its torch"):
        Result.from_json(content, ["torch"])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_result_can_be_just_anything(result, name):
    with pytest.raises(Unsound, match=f"an? {name.replace('_', ' ')} of "):
        Result.from_json({**result.to_json(), name: -1})
