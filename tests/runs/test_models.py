"""The models that come with the package, and making one of a run."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command import handful
from handful.checkpoint import load_checkpoint
from handful.embedders.shipped import CARD, is_shipped, model_facts, model_folder, models
from handful.errors import HandfulError
from handful.experiments import demo
from handful.io import write_json
from handful.runs import episodes as evaluation
from handful.runs.config import RunConfig
from handful.runs.episodes import Protocol
from handful.runs.evaluation import evaluate_run
from handful.runs.export import export_run
from handful.runs.folder import load_run
from handful.runs.training import train
from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled

SPEC = EpisodeSpec(ways=5, shots=1, queries=3, unlabelled=4)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory, blobs) -> Path:
    """A tiny run on blobs; its settings say 'glyphs' and where files were."""
    config = RunConfig(
        method="tac", dataset="glyphs", data="/home/somebody/secret", fingerprint=blobs["train"].fingerprint(),
        labelled_ratio=0.5, channels=1, image_size=28, train=replace(SPEC, ways=6), validation=SPEC, episodes=2,
        validate_every=2, validation_episodes=4,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "tac"
    train(config, folder, blobs["train"], blobs["val"], accelerator="cpu")
    state = load_checkpoint(folder / "checkpoint", "best")[1]
    for count, episode, mean in ((10, state["episode"], 51.0), (600, state["episode"], 52.0), (9000, 1, 99.0)):
        protocol = Protocol(SPEC, 0.5, splits=1, episodes=count)
        write_json(folder / "results" / f"tac-glyphs-{count}.json", {
            "method": "tac", "title": "TAC", "run": str(folder), "dataset": "glyphs", "data_options": {},
            "fingerprint": "0123", "protocol": protocol.to_json(), "n": count, "mean": mean, "interval": 0.5,
            "split_interval": None, "iterations": 1, "iterations_chosen_on": None,
            "trained": {"episodes": episode, "val_accuracy": state["best"]},
            **({"cluster_multiplier": 0.5, "trials": 8, "values": {"scale": 2.5}} if count == 600 else {}),
        })  # fmt: skip
    return folder


@pytest.mark.parametrize("name", models())
def test_every_shipped_model(name):
    folder = model_folder(name)
    config, learner, _ = load_run(folder)
    facts, card = model_facts(folder), (folder / CARD).read_text(encoding="utf-8")
    assert facts["name"] == name
    assert config.data is None
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in learner.parameters())
    assert {path.name.partition("-")[0] for path in (folder / "checkpoint").iterdir()} == {"best", "best.json"}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2e6
    for heading in ("Data", "Recipe", "Accuracy", "Limits"):
        assert f"\n## {heading}\n" in card
    assert f"`{config.dataset}`" in card
    assert config.fingerprint in card
    assert facts["measured"], "a model is shipped with its accuracy"
    for result in facts["measured"]:
        assert f"{result['mean']:.2f} ± {result['interval']:.2f}" in card
        assert result["protocol"]["description"] in card


def test_names_and_folders(tmp_path, monkeypatch):
    assert "tac-glyphs" in models()
    assert is_shipped(model_folder("tac-glyphs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tac-glyphs").mkdir()
    assert not is_shipped(model_folder("tac-glyphs")), "a folder of one's own goes first"
    with pytest.raises(HandfulError, match=r"resnet is not a run folder, nor one of the models .* tac-glyphs"):
        model_folder("resnet")
    with pytest.raises(HandfulError, match="is not a run folder"):
        model_folder("../models")


def test_a_shipped_model_is_measured_and_not_written_to():
    folder = model_folder("tac-glyphs")
    before = snapshot(folder)
    result = evaluate_run(folder, Protocol(SPEC, 0.4, splits=1, episodes=8), iterations=1, device="cpu")
    assert result.run == "tac-glyphs"
    assert result.n == 8
    assert snapshot(folder) == before


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = handful("models")
    assert listed.returncode == 0, listed.stderr
    assert "tac-glyphs" in listed.stdout
    assert "±" in listed.stdout
    rows = json.loads(handful("models", "--json").stdout)
    assert [row["name"] for row in rows] == models()
    assert all(Path(row["card"]).is_file() and row["measured"][0]["mean"] > 0 for row in rows)
    arguments = ("--splits", 1, "--episodes", 4, "--iterations", 1, "--device", "cpu", "--json")
    measured = handful("evaluate", "tac-glyphs", *arguments)
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["run"] == "tac-glyphs"
    assert not any(tmp_path.iterdir())
    unknown = handful("evaluate", "tac-glyph", *arguments)
    assert unknown.returncode == 2
    assert unknown.stdout == ""
    assert unknown.stderr.startswith("handful: tac-glyph is not a run folder, nor one of the models")
    assert len(unknown.stderr.splitlines()) == 1


def test_a_model_whose_data_is_not_embedded_asks_for_it(run, tmp_path):
    folder = tmp_path / "model"
    export_run(run, folder)
    settings = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**settings, "dataset": "omniglot"})
    with pytest.raises(HandfulError, match=r"'omniglot' reads your files: say where they are with --data PATH"):
        evaluate_run(folder, Protocol(SPEC, 0.5, 1, 1), device="cpu")


def test_an_exported_run_gives_the_same_logits(run, tmp_path, blobs):
    out = tmp_path / "new" / "my-model"
    facts = export_run(run, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "CARD.md", "checkpoint", "classes.json", "config.json", "model.json",
    ]  # fmt: skip
    assert sorted(path.name for path in out.parent.iterdir()) == ["my-model"], "nothing is left beside it"
    assert not any(b"secret" in content or str(run).encode() in content for content in snapshot(out).values())
    split = split_labelled(blobs["test"].labels, blobs["test"].class_names, 0.5, 0)
    episode = EpisodeSampler(split, SPEC, 0).batch(0, 2)
    images = episode.map_images(lambda rows: torch.from_numpy(blobs["test"].images[rows.numpy()]))
    logits = []
    for folder in (run, out):
        _, learner, _ = load_run(folder)
        with torch.inference_mode():
            logits.append(learner.method(images.map_images(learner.embed)))
    assert torch.equal(*logits)
    # An exported model can be exported again, with all that is known of it.
    assert export_run(out, tmp_path / "again", name="my-model") == facts


def test_the_card_says_what_was_measured_with_these_weights(run, tmp_path):
    facts = export_run(run, tmp_path / "model", name="blobs", about="noisy blobs", licence="CC0")
    card = (tmp_path / "model" / CARD).read_text(encoding="utf-8")
    assert [result["mean"] for result in facts["measured"]] == [52.0, 51.0], "the most episodes first"
    assert "52.00 ± 0.50 | 1 | soft labels' scale x 0.5, scale=2.5 |" in card
    assert "51.00 ± 0.50 | 1 | nothing |" in card
    assert "99.00" not in card, "it was measured before the training went on"
    for words in ("# blobs", "noisy blobs", "12 classes in train", "at most 6 classes", "under CC0", "28 x 28 pixels"):
        assert words in card


@pytest.mark.skipif(os.name == "nt", reason="Windows has no symbolic links by default")
def test_the_package_is_known_by_any_name(tmp_path):
    (tmp_path / "link").symlink_to(model_folder("tac-glyphs"), target_is_directory=True)
    assert is_shipped(tmp_path / "link")


def test_export_refuses(run, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    export_run(run, full)  # an empty folder will do
    before = snapshot(full)
    with pytest.raises(HandfulError, match="exists and is not empty: choose another --out"):
        export_run(run, full)
    assert snapshot(full) == before
    with pytest.raises(HandfulError, match="a model's name is of letters"):
        export_run(run, tmp_path / "new", name="../up")
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "results" / "odd.json").write_text("[]")
    with pytest.raises(HandfulError, match="results that are not of 'handful evaluate'"):
        export_run(damaged, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"mean": 934.0}, "a mean of 934.0"),
        ({"mean": -1}, "a mean of -1"),
        ({"mean": "52"}, "a mean of '52'"),
        ({"interval": -0.5}, "an interval of -0.5"),
        ({"n": 0}, "a n of 0"),
        ({"iterations": 1.5}, "an iterations of 1.5"),
        ({"protocol": {}}, "a protocol of {}"),
        ({"trained": 7}, "a trained of 7"),
        ({"title": ["TAC"]}, "a title of"),
    ],
)
def test_results_that_nobody_can_have_measured_are_not_exported(run, tmp_path, change, wrong):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    path = damaged / "results" / "tac-glyphs-600.json"
    write_json(path, {**json.loads(path.read_text()), **change})
    with pytest.raises(HandfulError, match="remove it to evaluate again") as error:
        export_run(damaged, tmp_path / "new")
    assert wrong in str(error.value)
    assert str(path) in str(error.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"measured": [{"mean": 934.0}]}, {"measured": 7}, {"measured": [7]}, {"about": 7}, {"licence": ["x"]},
        {"measured": "934"},
    ],
)  # fmt: skip
def test_facts_that_cannot_be_right_are_not_exported_again(run, tmp_path, change):
    export_run(run, tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    write_json(path, {**json.loads(path.read_text()), **change})
    with pytest.raises(HandfulError, match=r"model.json is damaged"):
        export_run(tmp_path / "model", tmp_path / "new")
    path.write_text("[" * 100_000)
    with pytest.raises(HandfulError, match=r"model.json is not valid JSON: the file is damaged"):
        export_run(tmp_path / "model", tmp_path / "new")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no symbolic links by default")
def test_export_follows_no_link(run, tmp_path):
    """Neither a link to an empty folder, nor one to nothing, is taken for a folder to make."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("link", "dangling"):
        with pytest.raises(HandfulError, match="is a link: choose another --out"):
            export_run(run, tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert not any((tmp_path / "empty").iterdir())


def test_export_replaces_nothing_that_came_meanwhile(run, tmp_path, monkeypatch):
    """A folder that somebody fills between the check and the end stays as it is."""
    out = tmp_path / "model"
    real = Path.rename

    def late(path: Path, target: Path) -> Path:
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(OSError):  # which one depends on the system
        export_run(run, out)
    assert snapshot(tmp_path) == {str(Path("model", "thesis.txt")): b"mine"}


def test_export_command(run, tmp_path):
    done = handful("export", run, "--out", tmp_path / "model", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "model"
    again = handful("export", run, "--out", tmp_path / "model")
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr


@pytest.mark.slow
def test_the_demo_takes_a_trained_model(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "CHOICE_EPISODES", 8)
    monkeypatch.setattr(demo, "TEST_EPISODES", 8)
    before = snapshot(model_folder("tac-glyphs"))
    result = demo.run_demo(tmp_path / "demo", episodes=1, models=["tac-glyphs"], device="cpu")
    assert result["models"]["tac"]["name"] == "tac-glyphs"
    runs = {path.name for path in (tmp_path / "demo" / "demo-runs").iterdir() if path.is_dir()}
    assert runs == {"pn-1-shot-20-way", "tapnet-1-shot-20-way", "tacdap-1-shot-20-way-distractors"}
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "TAC; tac-glyphs, not trained here" in report
    assert "tac-glyphs was not trained here but before" in report
    assert snapshot(model_folder("tac-glyphs")) == before


def test_the_demo_refuses_models_that_do_not_belong(run, tmp_path):
    with pytest.raises(HandfulError, match="are both of 'tac'"):
        demo.run_demo(tmp_path / "demo", models=["tac-glyphs", "tac-glyphs"])
    other = tmp_path / "other"
    shutil.copytree(run, other)
    settings = json.loads((other / "config.json").read_text())
    write_json(other / "config.json", {**settings, "dataset": "omniglot"})
    with pytest.raises(HandfulError, match="was trained on 'omniglot', and the demo is on 'glyphs'"):
        demo.run_demo(tmp_path / "demo", models=[str(other)])
    assert not (tmp_path / "demo").exists()
