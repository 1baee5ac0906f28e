"""A training option is one field: what the commands offer and what a run remembers is made of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import handful
from handful.datasets import load_dataset
from handful.experiments.paper import BUDGETS, System, recipe_for
from handful.experiments.setting import Setting
from handful.runs.config import RunConfig, TrainingData, build_config
from handful.runs.options import RunOptions, TrainingOptions
from handful.sampling import EpisodeSpec

NEW_LINE = '    softness: Annotated[float, Help("How soft.", least=0)] = 0.25\n'
SMALL = ["--ways", "4", "--test-ways", "3", "--test-unlabelled", "2", "--validation-episodes", "2",
         "--episodes", "1", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def with_the_line(tmp_path_factory) -> Callable[..., str]:
    """Runs the command line of a package that has one line more, and is ours in all else."""
    folder = tmp_path_factory.mktemp("changed")
    ours = Path(handful.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ours, folder / "handful", copy_function=os.symlink, ignore=ignored)
    text = (ours / "runs" / "options.py").read_text()
    before, anchor, after = text.partition("    weight_decay: Annotated")
    assert anchor
    changed = folder / "handful" / "runs" / "options.py"
    changed.unlink()
    changed.write_text(before + NEW_LINE + anchor + after)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "handful", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("command", ["train", "grid", "reproduce"])
def test_one_line_makes_an_option_of_every_command(with_the_line, command):
    assert "--softness" in with_the_line(command, "--help")


def test_one_line_makes_a_setting_of_a_run(with_the_line, tmp_path):
    run = tmp_path / "run"
    with_the_line("train", "--method", "pn", "--out", str(run), "--softness", "0.5", *SMALL)
    assert json.loads((run / "config.json").read_text())["softness"] == 0.5
    with_the_line("grid", "--method", "pn", "--out", str(tmp_path / "grid"), "--jobs", "1", "--splits", "1",
                  "--test-episodes", "2", *SMALL)  # fmt: skip
    (config,) = (tmp_path / "grid").glob("*/config.json")
    assert json.loads(config.read_text())["softness"] == 0.25


def test_every_run_option_is_a_setting_under_its_name():
    data = TrainingData("glyphs", load_dataset("glyphs", "train"), 0.4)
    other = TrainingOptions(
        learning_rate=0.5, weight_decay=0.25, precision="bfloat16", episodes_per_step=2, augment=True,
        validate_every=7, validation_episodes=9, average_pool=True,
    )  # fmt: skip
    config = build_config(data, "pn", {}, EpisodeSpec(), EpisodeSpec(), other, episodes=3, seed=4)
    assert {entry.name: getattr(config, entry.name) for entry in fields(RunOptions)} == other.run_options()
    assert config.backbone_options == {"average_pool": True}
    assert (config.train.unlabelled, config.episodes, config.seed) == (0, 3, 4), "as the method needs it"
    plain = build_config(data, "pn", {}, EpisodeSpec(), EpisodeSpec(), TrainingOptions(), episodes=3)
    assert plain.backbone_options == {}
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json())), Path("config.json")) == config


def test_a_reproduction_has_the_recipe_s_options_but_for_those_that_were_given():
    recipe = recipe_for("tiered-imagenet")
    images = load_dataset("glyphs", "train")
    given = {"augment": True, "learning_rate": 0.25, "episodes_per_step": 2}
    setting = Setting("glyphs", None, {}, images, 0.4, recipe, BUDGETS["minutes"], (1,), training=given, pretraining=5)
    config = setting.config(System("TAC", "tac"), 1, False)
    assert (config.learning_rate, config.augment, config.episodes_per_step) == (0.25, True, 2)
    assert (config.weight_decay, config.backbone_options) == (recipe.weight_decay, {"average_pool": True})
    assert "Adam at 0.25" in setting.caption()
    first = setting.config(System("Classifier", "classifier"), 1, False)
    assert first.learning_rate == recipe.start_rate, "the rate is that of the models in the tables"
