"""Settings and weights of a run: what cannot be meant, or cannot be right, is one sentence before it costs anything."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from handful import HandfulError
from handful.checkpoint import load_checkpoint, save_checkpoint
from handful.embedders import load_embedder
from handful.embedders.shipped import model_folder, models
from handful.methods import METHODS
from handful.runs.config import FORMAT, RunConfig, read_config
from handful.runs.episodes import Protocol, embed
from handful.runs.evaluation import evaluate_run
from handful.runs.export import export_run
from handful.runs.folder import check_unseen, load_run, seen_classes
from handful.runs.learner import build_learner, load_model
from handful.runs.training import train
from handful.sampling import EpisodeSpec

SPEC = EpisodeSpec(ways=5, shots=1, queries=3, unlabelled=4)
PROTOCOL = Protocol(SPEC, 0.4, splits=1, episodes=4)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig(
        method="tac", dataset="glyphs", fingerprint="0", labelled_ratio=0.4, channels=1, image_size=28,
        train=SPEC, validation=SPEC, episodes=2, validation_episodes=2,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder to be damaged."""
    shutil.copytree(model_folder("tac-glyphs"), tmp_path / "run")
    return tmp_path / "run"


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- settings


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"episodes": 10**30}, "episodes must be at most 1,000,000,000, got 1000"),
        ({"episodes_per_step": 10**9}, "episodes-per-step must be at most"),
        ({"validate_every": 10**30}, "validate-every must be at most"),
        ({"validation_episodes": 10**12}, "validation-episodes must be at most"),
        ({"validation_episodes": 10**6}, "images at a time, more than 10,000,000"),
        ({"train": replace(SPEC, ways=10**9)}, "ways must be at most 1,000,000"),
        (
            {"train": replace(SPEC, ways=10**6), "image_size": 448},
            r"a model of [\d,]+ numbers, more than 1,000,000,000",
        ),
        ({"validation": replace(SPEC, unlabelled=10**12)}, "unlabelled must be at most"),
        ({"validation": replace(SPEC, realistic_total=10**12)}, "realistic total must be at most"),
        ({"image_size": 10**6}, "the image size must be at most 4,096"),
        ({"image_size": 0}, "the image size must be at least 1"),
        ({"channels": 10**9}, "1 or 3 channels"),
        ({"seed": -1}, "the seed must be at least 0"),
        ({"seed": 10**30}, "the seed must be at most 4,294,967,295"),
        ({"labelled_ratio": float("nan")}, "the labelled ratio must be above 0 and at most 1, got nan"),
        ({"labelled_ratio": -0.5}, "the labelled ratio must be above 0"),
        ({"labelled_ratio": 2.0}, "the labelled ratio must be above 0"),
        ({"learning_rate": 10**400}, "the learning rate must be a number above 0, got 1000"),
        ({"learning_rate": float("nan")}, "the learning rate must be a number above 0"),
        ({"weight_decay": 10**400}, "the weight decay must be a number from 0 up"),
        ({"decay": float("nan")}, "the decay must be a number from 0 up"),
        ({"decay_at": float("inf")}, "the decay at must be a number from 0 up"),
        ({"options": {"iterations": 10**9}}, "iterations must be at most 1,000"),
        ({"options": {"train_iterations": 10**9}}, "train_iterations must be at most 1,000"),
        ({"options": {"scale": 10**400}}, "do not describe a model"),
        ({"options": {"scale": "wide"}}, "do not describe a model"),
        ({"method": "metagan", "options": {"noise": 10**9}}, r"a model of [\d,]+ numbers, more than 1,000,000,000"),
        ({"method": "metagan", "options": {"noise": 10**30}}, "do not describe a model"),
        ({"method": "relation", "options": {"channels": 10**9}}, "no square maps"),
        ({"backbone_options": {"width": 10**6}}, r"a model of [\d,]+ numbers, more than 1,000,000,000"),
        ({"backbone_options": {"width": 10**15}}, "do not describe a model"),
        ({"backbone_options": {"width": -1}}, "do not describe a model"),
        ({"backbone_options": {"whiten": 10**9}}, "conv4 can whiten from 0 to"),
        ({"backbone_options": {"depth": 9}}, "the backbone 'conv4' has no option 'depth': choose from width"),
        ({"backbone": "resnet"}, "unknown backbone 'resnet'"),
        ({"method": "reptile"}, "unknown method 'reptile'"),
    ],
)
def test_settings_of_absurd_size_are_refused_before_they_take_memory(config, changes, sentence):
    with pytest.raises(HandfulError, match=sentence) as error:
        build_learner(replace(config, **changes))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_run_says_its_format_and_one_without_is_of_the_first(config, run):
    assert config.to_json()["format"] == FORMAT
    old = json.loads((run / "config.json").read_text())
    assert "format" not in old
    known = read_config(run)
    change_json(run / "config.json", format=1)
    assert known.differences(read_config(run)) == [], "made before there were formats, or since: the same run"
    change_json(run / "config.json", format=FORMAT + 1, train="not as we know it", something_new=1)
    with pytest.raises(HandfulError, match=rf"newer handful \(format {FORMAT + 1}, .* upgrade handful"):
        load_run(run)


@pytest.mark.parametrize("odd", ["1", None, True, 0, -1, 1.0, [], 10**400])
def test_a_format_that_is_none_is_one_sentence(run, odd):
    change_json(run / "config.json", format=odd)
    with pytest.raises(HandfulError, match=r"its format is|newer handful") as error:
        load_run(run)
    assert len(str(error.value)) < 400


def test_a_setting_may_be_of_any_type(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Later(RunConfig):
        steps: tuple[int, ...] | list[int] = (1,)
        form: Literal["a", "b"] = "a"
        names: dict[str, list[int]] | None = None
        anything: object = None

    plain = read_config(model_folder("tac-glyphs")).to_json()
    path = tmp_path / "config.json"
    found = Later.from_json({**plain, "steps": [1, 2], "form": "b", "names": {"x": [1]}, "anything": 3}, path)
    assert (found.steps, found.form, found.names, found.anything) == ([1, 2], "b", {"x": [1]}, 3)
    for name in ("steps", "names"):
        with pytest.raises(HandfulError, match=f"{name} should be"):
            Later.from_json({**plain, name: "text"}, path)


@pytest.mark.parametrize("method", METHODS)
def test_a_look_at_the_size_of_a_model_does_not_change_its_weights(config, method):
    learner = build_learner(replace(config, method=method, seed=5))
    again = build_learner(replace(config, method=method, seed=5)).state_dict()
    assert all(torch.equal(value, again[name]) and not value.is_meta for name, value in learner.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"episodes": "many"}, "is not the settings of a run"),
        ({"episodes": True}, "episodes should be int"),
        ({"labelled_ratio": True}, "labelled_ratio should be float"),
        ({"labelled_ratio": 2}, "the labelled ratio must be above 0"),
        ({"learning_rate": [1]}, "is not the settings of a run"),
        ({"options": []}, "is not the settings of a run"),
        ({"options": "x"}, "is not the settings of a run"),
        ({"train": [1, 2]}, "is not the settings of a run"),
        ({"train": {"ways": 10**9}}, "ways must be at most"),
        ({"train": {"ways": "5"}}, "is not the settings of a run"),
        ({"validation": {"rooms": 5}}, "is not the settings of a run"),
        ({"precision": ["float32"]}, "is not the settings of a run"),
        ({"data": "a\0b"}, "data holds a NUL character"),
        ({"method": "t\0c"}, "method holds a NUL character"),
        ({"extra": 1}, "is not the settings of a run"),
        ({"seed": -1}, "the seed must be at least 0"),
    ],
)
def test_settings_in_a_file_that_cannot_be_meant(run, changes, sentence):
    change_json(run / "config.json", **changes)
    with pytest.raises(HandfulError, match=sentence) as error:
        load_run(run)
    assert str(run / "config.json") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "7", "[" * 100_000, '{"a":' * 100_000, '{"seed": NaN}', '{"seed": 1e999}'])
def test_settings_that_are_no_json_object(run, text):
    (run / "config.json").write_text(text)
    with pytest.raises(HandfulError, match="the file is damaged"):
        read_config(run)


def test_a_whole_number_is_a_float_too(run):
    change_json(run / "config.json", learning_rate=1, weight_decay=0)
    assert load_run(run)[0].learning_rate == 1


@pytest.mark.parametrize("changes", [{"dataset": "cifar"}, {"method": "reptile"}, {"backbone": "resnet"}])
def test_unknown_names_in_a_file(run, changes):
    change_json(run / "config.json", **changes)
    with pytest.raises(HandfulError, match=r"unknown .*: choose one of"):
        evaluate_run(run, PROTOCOL, iterations=1, device="cpu")


@pytest.mark.parametrize(
    ("changes", "iterations", "sentence"),
    [
        ({"episodes": 10**12}, 1, "episodes must be at most 10,000,000"),
        ({"splits": 10**12}, 1, "splits must be at most"),
        ({"splits": 10**4, "episodes": 10**4}, 1, "splits times episodes must be at most"),
        ({"splits": 0}, 1, "splits must be at least 1"),
        ({"seed": -1}, 1, "the seed must be at least 0"),
        ({"labelled_ratio": float("nan")}, 1, "the labelled ratio must be above 0"),
        ({"spec": replace(SPEC, ways=10**9)}, 1, "need 1000000000 classes"),
        ({}, 10**9, "iterations must be at most 1,000"),
    ],
)
def test_measurements_of_absurd_size_are_refused(run, changes, iterations, sentence):
    with pytest.raises(HandfulError, match=sentence):
        evaluate_run(run, replace(PROTOCOL, **changes), iterations=iterations, device="cpu")


# --- weights


def first_model(run: Path, name: str, change) -> None:
    """Change a tensor of the best checkpoint, and its checksum with it."""
    tensors, state = load_checkpoint(run / "checkpoint", "best")
    save_checkpoint(run / "checkpoint", "best", {**tensors, name: change(tensors[name])}, state)


def one(value: float):
    """Change a single number of a tensor."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[3] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("model.method.references", one(float("nan")), "has numbers that are not finite"),
        ("model.method.references", one(float("-inf")), "has numbers that are not finite"),
        ("model.method.references", torch.zeros_like, "is all zeros"),
        ("model.backbone.blocks.1.0.weight", one(3e38), "has numbers beyond 1e[+]06"),
        ("model.backbone.blocks.1.0.weight", torch.zeros_like, "is all zeros"),
        ("model.backbone.blocks.1.1.weight", torch.zeros_like, "is all zeros"),
        ("model.backbone.blocks.1.1.bias", one(float("nan")), "has numbers that are not finite"),
        ("model.backbone.blocks.1.1.running_var", one(-1.0), "has negative variances"),
        ("model.backbone.blocks.1.1.running_var", one(1e30), "has numbers beyond 1e[+]12"),
        ("model.backbone.blocks.1.1.running_mean", one(float("inf")), "has numbers that are not finite"),
    ],
)
def test_weights_that_are_nonsense_are_refused_whoever_asks(run, tmp_path, name, change, fault):
    first_model(run, name, change)
    for use in (
        lambda: load_run(run),
        lambda: evaluate_run(run, PROTOCOL, iterations=1, device="cpu"),
        lambda: export_run(run, tmp_path / "out"),
        lambda: load_embedder(f"conv4:{run}", "cpu"),
    ):
        with pytest.raises(HandfulError, match=fault) as error:
            use()
        assert "\n" not in str(error.value)
        assert str(run) in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [28, 84])
def test_fresh_weights_of_every_method_are_sound(config, method, size):
    """Those of shifts, of running means and of logarithms are zero, and so may trained ones be."""
    learner = build_learner(replace(config, method=method, image_size=size))
    load_model(learner, {f"model.{name}": value for name, value in learner.state_dict().items()}, Path("run"))


@pytest.mark.parametrize(
    ("method", "options"), [("imp", {"sigma": 1.0}), ("soft-kmeans-cluster", {"length_scale": 1.0})]
)
def test_a_single_number_may_be_zero(config, method, options):
    learner = build_learner(replace(config, method=method, options=options))
    weights = {f"model.{name}": value for name, value in learner.state_dict().items()}
    assert any(not value.any() for name, value in weights.items() if ".method.log" in name)
    load_model(learner, weights, Path("run"))


def test_vectors_that_overflow_are_no_accuracy(config):
    """Every weight may be within bounds, and the product of four layers beyond all numbers."""
    backbone = build_learner(config).backbone
    with torch.no_grad():
        for name, value in backbone.named_parameters():
            value.fill_(0.0 if name.endswith("bias") else 9e5)
    with pytest.raises(HandfulError, match="vectors are not finite"):
        embed(backbone, np.full((2, 28, 28, 1), 255, dtype=np.uint8))


@pytest.mark.parametrize("change", [{"episode": "500"}, {"best": float("nan")}, {"best": None}, {"best": 101}])
def test_a_state_that_cannot_be_right_is_refused(run, change):
    tensors, state = load_checkpoint(run / "checkpoint", "best")
    save_checkpoint(run / "checkpoint", "best", tensors, {**state, **change})
    with pytest.raises(HandfulError, match="damaged"):
        load_run(run)


def test_a_run_without_weights_says_what_to_do(run):
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(HandfulError, match=r"has no weights \(checkpoint/best.json is missing\): train it"):
        load_run(run)


def test_settings_with_options_that_a_method_no_longer_accepts(config, tmp_path):
    """They never had an effect: such a run loads, and resumes, as if they were not there."""
    settings = replace(config, method="pn")
    older = {**settings.to_json(), "options": {"iterations": 3, "train_iterations": 2, "cluster_scale": 0.5}}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert read_config(tmp_path) == settings
    build_learner(read_config(tmp_path))
    with pytest.raises(HandfulError, match="the method 'pn' makes no use of the option 'iterations'"):
        build_learner(replace(settings, options={"iterations": 3}))


# --- classes


@pytest.mark.parametrize("name", models())
def test_every_shipped_model_says_what_it_has_seen(name):
    assert {"train", "val"} <= seen_classes(model_folder(name)).keys()


def test_without_its_classes_a_run_is_not_evaluated(run, tmp_path):
    (run / "classes.json").unlink()
    for use in (
        lambda: evaluate_run(run, PROTOCOL, iterations=1, device="cpu"),
        lambda: export_run(run, tmp_path / "out"),
    ):
        with pytest.raises(HandfulError, match=r"has no classes.json.*put it back, or write it again .* --resume"):
            use()
    assert not (run / "results").exists()


@pytest.mark.parametrize(
    "content",
    [
        {}, {"train": ["a"]}, {"train": "a", "val": ["b"]}, {"train": [], "val": []}, {"train": ["a"], "val": [["b"]]},
        {"train": ["a"], "val": [7]}, {"train": {"a": 1}, "val": ["b"]}, {"train": ["a"], "val": ["b"], "start": None},
        ["a", "b"], "a", 7, None,
    ],
)  # fmt: skip
def test_classes_of_the_wrong_kind_are_one_sentence(run, blobs, content):
    (run / "classes.json").write_text(json.dumps(content))
    with pytest.raises(HandfulError, match="damaged") as error:
        check_unseen(run, blobs["test"])
    assert "\n" not in str(error.value)


def test_resuming_writes_the_classes_again(config, blobs, tmp_path):
    settings = replace(config, dataset="blobs", labelled_ratio=0.5)
    for resume in (False, True):
        train(settings, tmp_path / "run", blobs["train"], blobs["val"], resume=resume, accelerator="cpu")
        found = seen_classes(tmp_path / "run")
        assert found == {"train": list(blobs["train"].class_names), "val": list(blobs["val"].class_names)}
        (tmp_path / "run" / "classes.json").unlink()
