"""Every command as a user runs it, good input and bad; in a process of its own where that is what is tested."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.core import TyperGroup
from typer.main import get_command

from command import file_operations, handful, handful_process, handful_with, kill_at_file_operation
from handful.checkpoint import load_checkpoint
from handful.cli import app, main
from handful.experiments import demo
from handful.experiments.presets import FULL_DEMO
from handful.methods import METHODS
from handful.runs import episodes as evaluation

SMALL = ["--ways", "5", "--queries", "2", "--unlabelled", "2", "--test-queries", "3", "--test-unlabelled", "3",
         "--validation-episodes", "4", "--validate-every", "3", "--device", "cpu"]  # fmt: skip


def good(*arguments: object, run: Callable[..., subprocess.CompletedProcess[str]] = handful) -> str:
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def bad(*arguments: object) -> str:
    """Bad input: exit code 2, one sentence, no traceback, nothing on standard output."""
    result = handful(*arguments)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two tiny runs on the built-in data, one of them from a process of its own."""
    folder = tmp_path_factory.mktemp("runs")
    for method, run in (("tapnet", handful_process), ("pn", handful)):
        out = good("train", "--method", method, "--episodes", "4", "--out", folder / method, *SMALL, run=run)
        assert "best validation accuracy" in out
    return folder


@pytest.mark.parametrize("command", [[], ["methods"], ["datasets"], ["train"], ["evaluate"], ["grid"], ["reproduce"],
                                     ["demo"], ["models"], ["export"], ["data"], ["data", "check"],
                                     ["data", "prepare"]])  # fmt: skip
def test_help_teaches(command):
    out = good(*command, "--help")
    assert "Usage" in out
    assert len(out.splitlines()) > 8


def commands(group: TyperGroup, *words: str) -> Iterator[tuple[list[str], Any]]:
    """Every command there is, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *words, name)
        else:
            yield [*words, name], command


def test_help_shows_the_names_of_all_options_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    seen = 0
    for words, command in commands(root):
        out = good(*words, "--help")
        assert max(map(len, out.splitlines())) <= 80
        shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?![\w…-])", out.split("─ Options")[1]))
        names = {name for option in command.params for name in (*option.opts, *option.secondary_opts) if name[0] == "-"}
        assert names <= shown, f"{words}: {sorted(names - shown)} cut or missing in\n{out}"
        seen += len(names)
    assert seen > 150


def test_help_is_in_the_words_of_the_field():
    """Not in those of this project, which a newcomer cannot know."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    for words, command in commands(root):
        said = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
        for sentence in said:
            found = re.search(
                r"embedded data|plain way|tour\b|goes on|sets itself|; repeatable|per class there", sentence
            )
            assert not found, f"{words}: {found and found[0]!r} in {sentence!r}"


def test_version():
    assert good("--version", run=handful_process).startswith("handful ")


def test_methods_and_datasets():
    names = [row["name"] for row in json.loads(good("methods", "--json"))]
    assert names == list(METHODS)
    assert {"pn", "tacdap"} < set(names)
    assert "grad_through_projection" in good("methods")
    assert json.loads(good("datasets", "--json"))[0]["name"] == "glyphs"
    assert "glyphs" in good("datasets")


def test_train_json(tmp_path):
    out = json.loads(
        good("train", "--method", "tac", "--set", "scale=0.5", "--set", "grad_through_projection=true",
             "--episodes", 3, "--distractors", "--out", tmp_path / "run", "--json", *SMALL)
    )  # fmt: skip
    assert out["episode"] == 3
    assert out["config"]["options"] == {"scale": 0.5, "grad_through_projection": True}
    assert out["config"]["train"]["distractor_ways"] == 5
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.json", "metrics.jsonl", "labelled.npz", "classes.json", "checkpoint", ".lock",
    }  # fmt: skip


def test_evaluate(runs):
    arguments = [runs / "tapnet", "--splits", 2, "--episodes", 10, "--device", "cpu"]
    out = json.loads(good("evaluate", *arguments, "--json"))
    assert out["method"] == "tapnet"
    assert out["dataset"] == "glyphs"
    assert out["n"] == 20
    assert len(out["split_means"]) == 2
    assert 0 < out["mean"] < 100
    assert out["interval"] > 0
    assert out["protocol"]["spec"]["ways"] == 5
    assert out["protocol"]["description"].startswith("5-way 1-shot, 3 queries per class, 3 unlabelled per class")
    assert out["wall_seconds"] > 0
    assert out["episodes_per_second"] > 0
    again = json.loads(good("evaluate", *arguments, "--json"))
    assert again["split_means"] == out["split_means"]
    stored = [json.loads(path.read_text()) for path in (runs / "tapnet" / "results").glob("tapnet-*.json")]
    assert any(result["split_means"] == out["split_means"] for result in stored)


def test_evaluate_as_another_method_with_distractors_and_realistic(runs):
    common = [runs / "tapnet", "--method", "tapnet-semi", "--splits", 1, "--episodes", 5, "--json", "--device", "cpu"]
    auto = json.loads(good("evaluate", *common, "--distractors"))
    assert auto["title"] == "TapNet + Semi-Sup. Inference"
    assert 1 <= auto["iterations"] <= 5
    assert auto["iterations_chosen_on"].startswith("validation classes")
    assert auto["protocol"]["spec"]["distractors"] == 3
    given = json.loads(good("evaluate", *common, "--realistic", "0.8", "--iterations", 2))
    assert given["iterations"] == 2
    assert given["protocol"]["spec"]["realistic_total"] == 30
    uneven = json.loads(good("evaluate", *common, "--uneven", "2", "--distractors", "--iterations", 2))
    assert uneven["protocol"]["spec"]["concentration"] == 2


def test_evaluate_the_backbone_alone_with_a_method_of_given_options(runs):
    common = (
        runs / "pn",
        "--method",
        "soft-kmeans",
        "--splits",
        2,
        "--episodes",
        20,
        "--iterations",
        1,
        "--device",
        "cpu",
    )
    squared, of_run, cosine = (
        json.loads(good("evaluate", *common, *settings, "--json"))["mean"]
        for settings in (["--set", "scale=0.1"], [], ["--set", "cosine=true", "--set", "scale=10"])
    )
    assert squared == of_run != cosine
    assert "--set is for options of --method" in bad("evaluate", runs / "pn", "--set", "scale=1")
    assert "takes NAME=VALUE with a name from" in bad("evaluate", runs / "pn", "--method", "pt-map", "--set", "x=1")


def test_evaluate_prints_a_table_of_several_runs(runs):
    out = good("evaluate", runs / "tapnet", runs / "pn", "--splits", 1, "--episodes", 5, "--device", "cpu")
    assert "TapNet" in out
    assert "PN" in out
    assert "±" in out
    assert "1 splits x 5 episodes" in out


def test_bad_words(tmp_path):
    out = ["--out", tmp_path / "run"]
    assert "unknown method 'protonet': choose one of pn" in bad("train", "--method", "protonet", *out)
    assert "unknown data set 'imagenet': choose one of glyphs" in bad(
        "train", "--method", "pn", "--dataset", "imagenet", *out
    )
    assert "no such file or folder: nowhere" in bad("train", "--method", "pn", "--data", "nowhere", *out)
    assert "embedded and reads no files" in bad("train", "--method", "pn", "--data", tmp_path, *out)
    assert "must be a number above 0" in bad("train", "--method", "pn", "--set", "scale=nan", *out)
    assert "must be a number above 0" in bad("train", "--method", "pn", "--learning-rate", "nan", *out)
    assert "unknown device 'tpu'" in bad("train", "--method", "pn", "--device", "tpu", *out)
    assert "--set colour=3" in bad("train", "--method", "pn", "--set", "colour=3", *out)
    assert "takes a value like 1.0, got 'big'" in bad("train", "--method", "pn", "--set", "scale=big", *out)
    bad("train", "--method", "pn", "--episodes", "0", *out)
    bad("train", *out)
    bad("no-such-command")
    assert not (tmp_path / "run").exists()


def test_bad_sizes(tmp_path):
    out = ["--out", tmp_path / "run"]
    message = bad("train", "--method", "pn", "--shots", "90", *out)
    assert "labelled images, but 98 are needed (90 support + 8 query)" in message
    assert "class '" in message
    message = bad("train", "--method", "pn", "--ways", "100000", *out)
    assert "--ways: 100000 ways are more than the split 'train' has, 247 classes: take at most 247" in message
    assert not (tmp_path / "run").exists()


def test_bad_evaluations(runs, tmp_path):
    before = snapshot(runs)
    assert "is not a run folder" in bad("evaluate", tmp_path)
    assert "is not a run folder" in bad("evaluate", tmp_path / "missing")
    assert "does not learn what 'tac' needs" in bad("evaluate", runs / "pn", "--method", "tac")
    (tmp_path / "odd").mkdir()
    settings = json.loads((runs / "pn" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**settings, "image_size": "28"}))
    assert "image_size should be int" in bad("evaluate", tmp_path / "odd")
    assert "6 ways need as many references" in bad("evaluate", runs / "tapnet", "--ways", 6)
    assert "--iterations takes a whole number" in bad("evaluate", runs / "tapnet", "--iterations", "many")
    assert "between 0 and 1" in bad("evaluate", runs / "tapnet", "--realistic", "7")
    assert "exclude each other" in bad("evaluate", runs / "tapnet", "--realistic", "0.5", "--distractors")
    assert "exclude each other" in bad("evaluate", runs / "tapnet", "--realistic", "0.5", "--uneven", "2")
    assert "the concentration must be" in bad("evaluate", runs / "tapnet", "--uneven", "0")
    assert snapshot(runs) == before


def test_a_run_folder_of_another_method_is_not_touched(runs):
    before = snapshot(runs)
    message = bad("train", "--method", "tac", "--episodes", "4", "--out", runs / "pn", *SMALL)
    assert "holds another run, which differs in method (pn here, tac there)" in message
    message = bad("train", "--method", "pn", "--episodes", "4", "--out", runs / "pn", *SMALL)
    assert "add --resume" in message
    assert snapshot(runs) == before


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_corrupt_checkpoint(runs, tmp_path, name):
    run = tmp_path / "run"
    shutil.copytree(runs / "pn", run)
    file = next((run / "checkpoint").glob(f"{name}-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = snapshot(run)
    if name == "best":
        message = bad("evaluate", run)
    else:
        message = bad("train", "--method", "pn", "--episodes", "4", "--out", run, "--resume", *SMALL)
    assert "is damaged" in message
    assert {path: content for path, content in snapshot(run).items() if "checkpoint" in path} == {
        path: content for path, content in before.items() if "checkpoint" in path
    }


@pytest.mark.skipif(os.name != "posix", reason="sends Ctrl-C")
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, traps):
    run = tmp_path / "run"
    traps.send(signal.SIGINT, "*/run/metrics.jsonl", at=2)  # after episode 6; one that is due is finished first
    done = handful_with(traps, "train", "--method", "pn", "--episodes", "60", "--out", run, *SMALL)
    assert traps.sprung() == 1
    assert done.returncode == 130
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert load_checkpoint(run / "checkpoint", "last")[1]["episode"] in (6, 7)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a POSIX signal")
def test_a_run_killed_ten_times_ends_as_the_unbroken_one(tmp_path):
    """Wherever the kills hit: each is at a file operation in the run's folder, since in between nothing is lost."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    arguments = ["train", "--method", "tac", *SMALL, "--episodes", 180, "--out"]
    operations = file_operations(unbroken, *arguments, unbroken)
    # Ten lives that together are shorter than the run.
    chance, moments = random.Random(0), []
    for _ in range(10):
        kill_at_file_operation(chance.randint(1, operations // 10), killed, *arguments, killed, "--resume")
        moments.append(_episode(killed))
    good(*arguments, killed, "--resume", run=handful_process)
    print(f"killed at some of {operations} file operations, with so many episodes saved: {moments}")
    assert len(set(moments)) > 2, "not all before the first checkpoint"
    for name in ("last", "best"):
        (tensors, state), (others, other_state) = (
            load_checkpoint(tmp_path / folder / "checkpoint", name) for folder in ("unbroken", "killed")
        )
        assert state == other_state
        assert all(value.equal(others[key]) for key, value in tensors.items())
    first, second = ((tmp_path / folder / "metrics.jsonl").read_text() for folder in ("unbroken", "killed"))
    assert first == second


@pytest.mark.slow
def test_demo(tmp_path):
    out = good("demo", "--episodes", "2", "--out", tmp_path / "demo", "--device", "cpu")
    for title in ("PN", "Soft k-Means", "TapNet", "TapNet + Semi-Sup. Inference", "TAC", "TACdap"):
        assert title in out
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == 2
    assert "±" in report
    assert "http" not in report.replace("http-equiv", ""), "nothing is fetched from elsewhere"
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*.safetensors")}
    shutil.rmtree(tmp_path / "demo" / "demo-runs" / "pn-1-shot-20-way")
    again = good("demo", "--episodes", "2", "--out", tmp_path / "demo", "--device", "cpu")
    assert again.split("Took")[0] == out.split("Took")[0], "resumed to the same table"
    kept = {path: path.stat().st_mtime_ns for path in weights if "pn-1-shot" not in str(path)}
    assert len(kept) > 2 and kept.items() <= weights.items(), "finished trainings are used again"
    assert "is not from a reproduction" in bad("reproduce", "tsne", "--out", tmp_path / "demo")


@pytest.mark.slow
def test_full_demo_has_every_method(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "CHOICE_EPISODES", 8)
    monkeypatch.setattr(demo, "TEST_EPISODES", 8)
    result = demo.run_demo(tmp_path / "demo", full=True, episodes=1, device="cpu")
    shown = {name for names in FULL_DEMO.trainings.values() for name in names}
    assert list(result["rows"]) == [cls.title for name, cls in METHODS.items() if name in shown]
    assert len(shown) >= 15


def _episode(run: Path) -> int:
    if not (run / "checkpoint" / "last.json").exists():
        return 0
    return load_checkpoint(run / "checkpoint", "last")[1]["episode"]


@pytest.fixture
def photos(tmp_path) -> Path:
    """train/ val/ test/ of six classes with ten images each."""
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for label in range(6):
            folder = tmp_path / "photos" / split / f"{split}-{label}"
            folder.mkdir(parents=True)
            for index in range(10):
                pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "photos"


def test_data_check(photos):
    out = good("data", "check", "--data", photos)
    assert "180 images read" in out and "nothing is wrong" in out and "30 x 40" in out
    broken = photos / "train" / "train-0" / "3.png"
    broken.write_bytes(b"no image")
    out = good("data", "check", "--data", photos)
    assert "train/train-0/3.png: no image of a format that is read" in out
    report = handful("data", "check", "--data", photos, "--strict", "--json")
    assert report.returncode == 2 and not report.stderr
    assert json.loads(report.stdout)["splits"]["train"]["broken"].keys() == {"train/train-0/3.png"}
    (photos / "val" / "val-0").rename(photos / "val" / "train-1")
    report = handful("data", "check", "--data", photos)
    assert report.returncode == 2 and "'train-1' in train and val" in report.stdout


def test_data_check_names_what_is_wrong(photos):
    for number in (2, 3):
        (photos / "val" / f"val-{number}").rename(photos / "val" / f"train-{number}")
        (photos / "test" / "test-0" / f"copy {number}.png").write_bytes(
            (photos / "train" / "train-0" / f"{number}.png").read_bytes()
        )
        for index in range(4):
            (photos / "test" / f"test-{number}" / f"{index}.png").unlink()
    lines = [line.strip() for line in handful("data", "check", "--data", photos).stdout.splitlines()]
    for line in (
        "train-2: train, val", "train-3: train, val", "test-2: 6", "test-3: 6",
        "train: train/train-0/2.png = test: test/test-0/copy 2.png",
        "train: train/train-0/3.png = test: test/test-0/copy 3.png",
    ):  # fmt: skip
        assert line in lines


def test_train_and_evaluate_on_a_folder_of_ones_own(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    rows = json.loads(good("data", "prepare", "--data", photos, "--image-size", "32", "--json"))
    assert [(row["split"], row["classes"], row["images"]) for row in rows] == [
        ("train", 6, 60), ("val", 6, 60), ("test", 6, 60),
    ]  # fmt: skip
    run = tmp_path / "run"
    data = ("--dataset", "folder", "--data", photos)
    small = [*SMALL, "--image-size", "32"]
    good("train", *data, "--method", "tac", "--episodes", "3", "--out", run, *small)
    assert json.loads((run / "config.json").read_text())["data_options"] == {"image_size": 32, "split_seed": 0}
    result = json.loads(good("evaluate", run, "--splits", "1", "--episodes", "5", "--iterations", "1", "--json"))
    assert result["dataset"] == "folder" and result["n"] == 5
    # The same weights on another folder, and on data that do not fit.
    other = json.loads(
        good(
            "evaluate",
            run,
            "--data",
            photos,
            "--data-option",
            "split_seed=1",
            "--splits",
            "1",
            "--episodes",
            "5",
            "--json",
        )
    )
    assert other["data_options"] == {"image_size": 32, "split_seed": 1}
    assert "3 channels" in bad("evaluate", run, "--dataset", "glyphs", "--splits", "1", "--episodes", "5")
    # Classes of the run's own training in the test split.
    shutil.copytree(photos, tmp_path / "shared")
    shutil.rmtree(tmp_path / "shared" / "test")
    shutil.copytree(photos / "train", tmp_path / "shared" / "test")
    assert "'train-0' is in the test split, but" in bad(
        "evaluate", run, "--data", tmp_path / "shared", "--episodes", "5"
    )
    # The images have moved, or changed.
    moved = ("--dataset", "folder", "--data", photos.rename(tmp_path / "moved"))
    assert "say where the files are with --data" in bad("evaluate", run, "--episodes", "5")
    good("train", *moved, "--method", "tac", "--episodes", "3", "--out", run, "--resume", *small)
    photos, data = tmp_path / "moved", moved
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(photos / "train" / "train-0" / "0.png")
    assert "fingerprint" in bad("train", *data, "--method", "tac", "--episodes", "3", "--out", run, "--resume", *small)


def test_bad_data(photos, tmp_path):
    assert "no such file" in bad("data", "check", "--data", tmp_path / "nowhere")
    assert "--data PATH" in bad("data", "prepare", "--dataset", "omniglot")
    assert "no option 'image_size'" in bad("data", "check", "--dataset", "glyphs", "--image-size", "32")
    assert "with a name from image_size, split_seed" in bad("data", "check", "--data", photos, "--data-option", "x=1")
    (photos / "val" / "val-0").rename(photos / "val" / "train-1")
    out = bad("train", "--dataset", "folder", "--data", photos, "--method", "pn", "--out", tmp_path / "run", *SMALL)
    assert "class 'train-1' is both in train and val" in out


def test_a_training_that_starts_from_a_classifier(photos, tmp_path):
    """Started, stopped, resumed without naming the start again, and handed on."""
    data = ["--dataset", "folder", "--data", photos, "--image-size", "28"]
    start, run = tmp_path / "start", tmp_path / "run"
    good("train", *data, "--method", "classifier", "--augment", "--episodes", "3", "--out", start, *SMALL)
    words = ["train", *data, "--method", "tac", "--episodes", "3", "--out", run, *SMALL]
    good(*words, "--start", start)
    assert "already holds this run" in bad(*words, "--start", start)
    shutil.rmtree(start)
    good(*words, "--resume")
    assert "is not a run folder" in bad(*words, "--start", start, "--resume")
    good("export", run, "--out", tmp_path / "model")
    card = (tmp_path / "model" / "CARD.md").read_text()
    assert "| starts from | the embedder of another run, weights" in card
    assert str(tmp_path) not in (tmp_path / "model" / "config.json").read_text(), "no paths of this machine"


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("label", "fit")]


@pytest.mark.parametrize("kind", ["project", *_SLOW])
def test_bench(kind, tmp_path):
    extra = ["--points", "2000"] if kind != "project" else []
    done = handful_process("bench", kind, "--repeats", "1", "--json", "--out", tmp_path, *extra)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((tmp_path / f"{kind}.json").read_text())
    if kind != "fit":
        assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    if kind == "project":
        assert all(row["off by"] < 1e-5 for row in result["rows"])
    refused = handful("bench", "everything")
    assert (refused.returncode, refused.stderr.count("choose one of eval, train, project, label")) == (2, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--method", "pn", "--out", "{folder}/a\0b"],
        ["train", "--method", "p\0n", "--out", "{folder}/run"],
        ["train", "--method", "pn", "--out", "{folder}/run", "--dataset", "folder", "--data", "{folder}/a\0b"],
        ["export", "tac-glyphs", "--out", "{folder}/a\0b"],
        ["export", "tac-glyphs", "--out", "{folder}/model", "--name", "a\0b"],
        ["evaluate", "{folder}/a\0b"],
        ["grid", "--method", "pn", "--out", "{folder}/a\0b"],
        ["head", "train", "--embedder", "conv4:{folder}/a\0b", "--dataset", "glyphs", "--out", "{folder}/head"],
    ],
)
def test_a_nul_character_in_a_name_is_bad_input(arguments, tmp_path, monkeypatch, capsys):
    """No shell can pass one on, but a program that calls ours, or a file that it reads, can."""
    monkeypatch.setattr(sys, "argv", ["handful", *(argument.format(folder=tmp_path) for argument in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_what_python_says_of_a_nul_character_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr("handful.cli.commands.app", lambda: Path("a\0b").read_text())
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error == "handful: a name or a path holds a NUL character, which no file has in its name: remove it\n"


def test_other_bugs_keep_their_traceback(monkeypatch):
    def broken():
        raise ValueError("a bug")

    monkeypatch.setattr("handful.cli.commands.app", broken)
    with pytest.raises(ValueError, match="a bug"):
        main()
