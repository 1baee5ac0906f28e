"""What 'handful train' and 'handful grid' do where nothing is said: ways that the data has classes for, the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from handful import HandfulError
from handful.cli import options
from handful.cli.commands import app
from handful.sampling import EpisodeSpec

SHORT = ["--episodes", "1", "--queries", "2", "--unlabelled", "2", "--test-queries", "2", "--test-unlabelled", "2",
         "--validation-episodes", "2", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """21 classes in a plain folder, which are dealt out to the splits: 14, 3 and 4."""
    folder = tmp_path_factory.mktemp("album")
    rng = np.random.default_rng(0)
    for number in range(21):
        (folder / f"class-{number:02}").mkdir()
        for image in range(12):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(
                folder / f"class-{number:02}" / f"{image}.png"
            )
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command here: what it leaves in config.json, and what it says on standard error."""
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))

    def call(*arguments: object) -> tuple[dict[str, Any], str]:
        options._say_once.cache_clear()
        out = tmp_path / "out"
        command = [*map(str, arguments), "--out", str(out), *SHORT]
        done = CliRunner().invoke(app, command)
        if done.exception:
            raise done.exception
        (config,) = out.rglob("config.json")
        return json.loads(config.read_text()), done.stderr

    return call


def on(album: Path) -> list[object]:
    return ["--dataset", "folder", "--data", album, "--image-size", 28]


def test_ways_are_as_many_as_there_are_classes(album, run):
    config, said = run("train", "--method", "tac", *on(album))
    assert (config["train"]["ways"], config["validation"]["ways"]) == (14, 3)
    assert "--ways is 14 here, not 20: the split 'train' has 14 classes\n" in said
    assert "--test-ways is 3 here, not 5: the split 'val' has 3 classes\n" in said


def test_distractors_need_a_few_classes_at_least(album, run):
    sentence = (
        "--test-ways: 5 ways and as many distractor classes are more than the split 'val' has, 3 classes: 2 ways and "
        "as many distractor classes are the least, add classes"
    )
    with pytest.raises(HandfulError, match=sentence):
        run("train", "--method", "pn", "--distractors", *on(album))
    config, said = run("grid", "--method", "pn", "--distractors", "without", "--splits", 1, "--test-episodes", 2,
                       "--jobs", 1, *on(album))  # fmt: skip
    assert config["train"]["ways"] == 14 and "--ways is 14" in said
    assert said.count("--test-ways is 3 here") == 1


def test_ways_that_were_asked_for_are_an_error_that_names_option_and_split(album, run, tmp_path):
    for option, split, there in (("--ways", "train", 14), ("--test-ways", "val", 3)):
        with pytest.raises(HandfulError, match=f"{option}: 15 ways are more than the split '{split}' has, {there} "
                           f"classes: take at most {there}"):  # fmt: skip
            run("train", "--method", "tac", option, 15, *on(album))
    assert not (tmp_path / "out").exists()


def test_distractors_have_classes_of_their_own():
    def spec(ways: int, **more: Any) -> EpisodeSpec:
        return EpisodeSpec(ways, 1, 2, 2, **more)

    def fit(make: Any, classes: int, given: int | None = None) -> int:
        return options.fitting_spec("--ways", given, 20, make, {"train": classes, "test": 99}).ways

    assert fit(lambda n: spec(n, distractor_ways=n, distractors=2), 14) == 7
    assert fit(lambda n: spec(n, realistic_total=8, realistic_share=0.5), 14) == 13
    assert fit(lambda n: spec(n, realistic_total=8, realistic_share=0.0), 14) == 14
    assert fit(lambda n: spec(n, distractor_ways=n, distractors=2), 40) == 20
    with pytest.raises(HandfulError, match=r"--ways: 8 ways and as many distractor classes .* at most 7"):
        fit(lambda n: spec(n, distractor_ways=n, distractors=2), 14, given=8)


@pytest.mark.parametrize("command", ["train", "grid"])
def test_what_is_not_set_is_the_recipe_s(run, command):
    more = ["--splits", 1, "--test-episodes", 2, "--jobs", 1] if command == "grid" else []
    config, said = run(command, "--method", "pn", *more)
    assert config["options"] == {"scale": 0.1}, "at the published 1 PN learns slower"
    assert (config["train"]["ways"], config["validation"]["ways"]) == (20, 5) and "--ways" not in said


def test_the_published_value_can_be_set(run):
    assert run("train", "--method", "pn", "--set", "scale=1")[0]["options"] == {"scale": 1.0}


@pytest.mark.parametrize("command", ["train", "grid"])
def test_a_form_is_not_mixed_with_the_recipe(run, command):
    more = ["--splits", 1, "--test-episodes", 2, "--jobs", 1] if command == "grid" else []
    assert run(command, "--method", "pn", "--set", "form=published", *more)[0]["options"] == {"form": "published"}


def test_a_run_from_before_goes_on_as_it_was(run, tmp_path):
    config, _ = run("train", "--method", "pn")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps({**config, "options": {}}))
    assert run("train", "--method", "pn", "--resume")[0]["options"] == {}


def test_a_model_that_starts_from_another_has_the_options_of_those(tmp_path):
    fresh = tmp_path / "none"
    assert options.recipe_options("glyphs", "pn", fresh, started=True) == {"scale": 0.03}
    assert options.recipe_options("omniglot", "pn", fresh) == {}
    assert options.recipe_options("glyphs", "tac", fresh) == {}


@pytest.mark.parametrize(
    ("method", "given", "kept"),
    [
        ("tac", {}, {"learn_scale", "cluster_scale"}),
        ("tac", {"partial_projection": 0.5, "classify": "references"}, {"learn_scale", "cluster_scale"}),
        ("tac", {"classify": "means"}, {"learn_scale"}),
        ("tac", {"cosine_clustering": True, "scale": 10.0}, {"learn_scale"}),
        ("pn", {"cosine": True}, {"cosine", "scale", "learn_scale"}),
        ("pn", {"cosine": False}, {"cosine", "learn_scale"}),
        ("tac", {"form": "published"}, set()),
    ],
)
def test_a_scale_of_the_recipe_is_for_its_own_distances(method, given, kept, tmp_path):
    found = options.recipe_options("mini-imagenet", method, tmp_path / "none", given, started=True)
    assert set(found) == kept
