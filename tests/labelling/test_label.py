"""From a folder of pictures to files: what is found, what is written, and that nothing else is touched."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY
from urllib.parse import quote

import numpy as np
import pytest
from album import truth, write_labels

import handful
from command import handful as handful_command
from handful import HandfulError
from handful.cli import app, main
from handful.embedders.shipped import model_folder
from handful.estimator.head import Head, head_of, load_head
from handful.labelling import find_labels, label_images, true_accuracy
from handful.labelling.prediction import two_best
from handful.labelling.report import describe, questions


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_labels_are_found_and_others_are_none_of_these(photos, labels, embedder):
    found = handful.label_images(photos, labels, embedder=embedder)
    assert [one.path for one in found.predictions] == sorted(one.path for one in found.predictions)
    own = [one for one in found.predictions if truth(one.path) != "sand"]
    assert all(one.label == truth(one.path) for one in own)
    other = [one for one in found.predictions if truth(one.path) == "sand"]
    assert sum(one.is_none for one in other) >= 11
    assert sum(one.is_none for one in own) <= 10
    assert {one.source for one in own} == {"given", "predicted"}
    assert sum(one.source == "given" for one in own) == 9
    assert all(0 <= one.confidence <= 1 and 0 <= one.none_score <= 1 for one in found.predictions)
    assert all(one.runner_up != one.label for one in found.predictions)
    assert found.estimate is not None and found.estimate.total == 9
    assert all(one.found == one.label for one in found.estimate.hidden)
    assert found.estimate.right == 9 - sum(one.is_none for one in found.estimate.hidden), "thrown out is not right"
    assert sum(found.counts().values()) + len(found.none()) == 72
    assert len(set(found.next_to_label)) == 12


def test_without_others_every_image_has_a_class(photos, labels, embedder):
    every = find_labels(photos, labels, embedder=embedder, distractors=False, none_threshold=1.0)
    assert not every.none()
    strict = find_labels(photos, labels, embedder=embedder, none_threshold=1.0)
    assert len(strict.none()) == 72 - 9, "all but the given ones"


def test_what_is_written(photos, labels, embedder, tmp_path):
    before = tree(photos)
    out = tmp_path / "out"
    found = label_images(photos, labels, out, embedder=embedder, folders="copy", label_studio=True)
    rows = read(out / "predictions.csv")
    plain = ["path", "label", "confidence", "runner_up", "none_score", "is_none", "source"]
    chances = [f"p:{name}" for name in found.classes]
    assert list(rows[0]) == [*plain, *chances]
    for row in rows:
        assert abs(sum(float(row[name]) for name in chances) - 1) < 0.001
        assert row["confidence"] == row[f"p:{row['label']}"]
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    for line, row in zip(lines, rows, strict=True):
        assert {key: str(line[key]) for key in plain} == {key: row[key] for key in plain}
        assert line["probabilities"] == {k: float(row[f"p:{k}"]) for k in found.classes if float(row[f"p:{k}"])}
    assert [row["path"] for row in rows] == [one.path for one in found.predictions]

    tasks = json.loads((out / "label-studio.json").read_text(encoding="utf-8"))
    assert sum("annotations" in task for task in tasks) == 9
    assert sum("predictions" in task for task in tasks) == 63
    for task, one in zip(tasks, found.predictions, strict=True):
        (entry,) = task.get("annotations") or task["predictions"]
        assert entry["result"][0]["value"]["choices"] == ["none-of-these" if one.is_none else one.label]
        assert task["data"]["image"] == f"/data/local-files/?d={quote(one.path)}"

    copies = tree(out / "images")
    assert len(copies) == 72
    for one in found.predictions:
        folder = "none-of-these" if one.is_none else one.label
        assert copies[f"{folder}/{one.path.replace('/', '__')}"] == before[one.path]
    assert tree(photos) == before, "the images stay as they are"

    page = (out / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'src="([^"]{30})', page)
    assert len(sources) > 20 and all(source.startswith("data:image/") for source in sources)
    assert not re.search(r"https?://|<script", page)
    for words in ("Label these next", "None of these", "of 9 given labels were found", "red: "):
        assert words in page
    assert {"map.png", "map.svg", "map.csv", "report.md"} <= {path.name for path in out.iterdir()}


def test_links_point_to_the_images(photos, labels, embedder, tmp_path):
    label_images(photos, labels, tmp_path / "out", embedder=embedder, folders="link", report=False)
    links = [path for path in (tmp_path / "out" / "images").rglob("*") if not path.is_dir()]
    assert len(links) == 72
    assert all(photos.resolve() in path.resolve().parents for path in links)
    # Again, with other labels: no image stays under a label that it no longer has.
    rows = [("day 0/00.png", "warm"), ("day 1/01.png", "cold"), ("day 0/02.png", "cold")]
    other = write_labels(tmp_path / "other.csv", rows)
    label_images(photos, other, tmp_path / "out", embedder=embedder, folders="link", report=False)
    assert {path.name for path in (tmp_path / "out" / "images").iterdir()} <= {"warm", "cold", "none-of-these"}
    assert len(list(photos.rglob("*.png"))) == 72


def test_the_second_run_embeds_nothing(photos, labels, embedder):
    first = find_labels(photos, labels, embedder=embedder)
    calls = sys.modules["my_embedder"].calls
    calls.clear()
    second = find_labels(photos, labels, embedder=embedder)
    assert sum(calls) == 1, "only the empty image that tells the length of a vector"
    np.testing.assert_array_equal(first.vectors, second.vectors)
    assert first.predictions == second.predictions


def test_other_labels_cost_a_fit_and_read_no_image(photos, labels, embedder, monkeypatch):
    table = {row["path"]: row["label"] for row in read(labels) if row["label"]}
    first = find_labels(photos, labels, embedder=embedder, none_threshold=0.4, suggestions=5)
    changes = {"day 0/10.png": "green", "day 1/01.png": "", "day 0/00.png": "warm", "day 0/06.png": "warm",
               "other 03.png": "none-of-these"}  # fmt: skip
    calls = sys.modules["my_embedder"].calls
    with monkeypatch.context() as patch:
        patch.setattr("handful.labelling.label.embed_files", None)
        patch.setattr("handful.labelling.label.load_embedder", None)
        patch.setattr("handful.datasets.files.Files.read", None)
        calls.clear()
        second = first.relabelled(changes)
        assert not calls
        back = second.relabelled({name: table.get(name, "") for name in changes})
    assert replace(back, vectors=ANY) == first
    rows = [(name, label) for name, label in {**table, **changes}.items() if label]
    fresh = find_labels(photos, write_labels(labels, rows), embedder=embedder, none_threshold=0.4, suggestions=5)
    np.testing.assert_array_equal(second.vectors, fresh.vectors)
    assert replace(second, vectors=ANY) == fresh
    assert "warm" in second.classes and second.predictions != first.predictions


def test_labels_that_cannot_be_are_no_change(photos, labels, embedder):
    found = find_labels(photos, labels, embedder=embedder)
    for changes, message in (
        ({"day 9/10.png": "green"}, r"there is no image 'day 9/10\.png' among the images"),
        ({"day 0/10.png": "a/b"}, "cannot be a class's name"),
        ({one.path: "red" for one in found.predictions}, "all labelled images are of one class, 'red'"),
    ):
        with pytest.raises(HandfulError, match=message):
            found.relabelled(changes)


def test_the_map_is_kept_for_more_labels_of_the_same_images(photos, labels, embedder, tmp_path, monkeypatch):
    label_images(photos, labels, tmp_path / "out", embedder=embedder)
    before = read(tmp_path / "out" / "map.csv")
    monkeypatch.setattr("sklearn.manifold.TSNE.fit_transform", lambda *_: pytest.fail("it is computed again"))
    rows = [("day 0/00.png", "warm"), ("day 1/01.png", "cold"), ("day 0/02.png", "cold")]
    label_images(photos, write_labels(tmp_path / "other.csv", rows), tmp_path / "out", embedder=embedder)
    after = read(tmp_path / "out" / "map.csv")
    assert [(row["path"], row["x"], row["y"]) for row in after] == [(row["path"], row["x"], row["y"]) for row in before]
    assert [row["label"] for row in after] != [row["label"] for row in before]


def test_a_damaged_map_is_drawn_again(photos, labels, embedder, tmp_path, own_cache):
    label_images(photos, labels, tmp_path / "out", embedder=embedder)
    before = (tmp_path / "out" / "map.csv").read_bytes()
    (kept,) = (own_cache / "maps").iterdir()
    for damage in (kept.read_bytes()[:-3], b"\xff" * kept.stat().st_size):
        kept.write_bytes(damage)
        label_images(photos, labels, tmp_path / "out", embedder=embedder)
        assert (tmp_path / "out" / "map.csv").read_bytes() == before


def test_the_two_best_of_very_many_classes():
    chances = np.random.default_rng(0).integers(0, 9, (3000, 40)) / 10
    np.testing.assert_array_equal(two_best(chances), np.argsort(-chances, axis=1, kind="stable")[:, :2])


def test_broken_images_are_named_and_left_out(photos, labels, embedder):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    (photos / "empty.png").write_bytes(b"")
    found = find_labels(photos, labels, embedder=embedder)
    assert set(found.broken) == {"broken.jpg", "empty.png"}
    assert found.broken["empty.png"] == "empty file"
    assert len(found.predictions) == 72


def test_a_class_whose_images_are_all_broken(photos, embedder):
    (photos / "broken.jpg").write_bytes(b"no image")
    rows = [("day 0/00.png", "red"), ("day 1/01.png", "green"), ("broken.jpg", "blue")]
    table = write_labels(photos.parent / "labels.csv", rows)
    with pytest.raises(HandfulError, match=r"none of the images labelled 'blue' can be read; the first, broken\.jpg"):
        find_labels(photos, table, embedder=embedder)


def test_the_accuracy_is_unknown_for_single_labels(photos, embedder):
    rows = [("day 0/00.png", "red"), ("day 1/01.png", "green"), ("day 0/02.png", "blue")]
    found = find_labels(photos, write_labels(photos.parent / "labels.csv", rows), embedder=embedder)
    assert found.estimate is None


def image(index: int) -> str:
    return f"day {index % 2}/{index:02d}.png"


def test_one_class_with_a_single_label_takes_the_estimate_from_nobody(photos, embedder):
    rows = [(image(index), truth(image(index))) for index in (0, 1, 2, 3, 4)]
    found = find_labels(photos, write_labels(photos.parent / "labels.csv", rows), embedder=embedder)
    assert found.estimate is not None
    assert (found.estimate.total, found.estimate.single) == (4, ("blue",))
    assert "classes with a single label: 'blue'" in describe(found.estimate)


def test_labels_that_look_alike_and_given_labels_that_look_wrong_are_asked_about(photos, embedder):
    right = {image(index): truth(image(index)) for index in range(30)}
    wrong = right | {image(0): "green"}  # it is red
    found = find_labels(photos, write_labels(photos.parent / "wrong.csv", [*wrong.items()]), embedder=embedder)
    assert [path for path, *_ in found.suspects()] == [image(0)]
    assert any(f"Is {image(0)} really 'green'?" in question for question in questions(found))
    typo = write_labels(photos.parent / "typo.csv", [*(right | {image(1): "gren"}).items()])
    assert find_labels(photos, typo, embedder=embedder).alike == [("green", "gren")]


def test_the_truth_says_how_many_are_really_right(photos, labels, embedder, tmp_path):
    found = find_labels(photos, labels, embedder=embedder)
    known = {one.path: "none-of-these" if truth(one.path) == "sand" else truth(one.path) for one in found.predictions}
    real = true_accuracy(found, known)
    predicted = [one for one in found.predictions if one.source == "predicted"]
    right = sum(("none-of-these" if one.is_none else one.label) == known[one.path] for one in predicted)
    assert (real.right, real.total, real.of_none) == (right, len(predicted), 12)
    assert true_accuracy(found, {}) is None
    table = write_labels(tmp_path / "truth.csv", known.items())
    words = ["label", photos, "--labels", labels, "--truth", table, "--embedder", embedder, "--no-report"]
    out = handful_command(*words, "--out", tmp_path / "out").stdout
    assert f"True accuracy: {right} of {len(predicted)} predicted labels are right" in out
    content = handful_command(*words, "--out", tmp_path / "out", "--json").stdout
    assert json.loads(content)["truth"]["right"] == right


def test_vectors_of_your_own(photos, labels, tmp_path):
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    rng = np.random.default_rng(0)
    directions = {name: rng.normal(size=8) for name in ("red", "green", "blue", "sand")}
    vectors = np.array([directions[truth(name)] + 0.1 * rng.normal(size=8) for name in names], dtype=np.float32)
    np.save(tmp_path / "v.npy", vectors)
    plain = find_labels(photos, labels, embedder=f"npy:{tmp_path / 'v.npy'}")
    assert all(one.label == truth(one.path) for one in plain.predictions if truth(one.path) != "sand")
    order = rng.permutation(len(names))
    np.savez(tmp_path / "v.npz", paths=np.array(names)[order], vectors=vectors[order])
    mixed = find_labels(photos, labels, embedder=f"npy:{tmp_path / 'v.npz'}")
    assert [one.label for one in mixed.predictions] == [one.label for one in plain.predictions]
    np.save(tmp_path / "v.npy", vectors[1:])
    with pytest.raises(HandfulError, match="has 71 vectors, but there are 72 images"):
        find_labels(photos, labels, embedder=f"npy:{tmp_path / 'v.npy'}")


def test_the_command(photos, labels, embedder, tmp_path, capsys):
    words = ["label", photos, "--labels", labels, "--out", tmp_path / "out", "--embedder", embedder, "--no-report"]
    app([str(word) for word in words], standalone_mode=False)
    out, errors = capsys.readouterr()
    assert "none of these" in out and "Label next: " in out and "95 % interval" in out
    assert "predictions.csv" in errors
    app([*map(str, words), "--json"], standalone_mode=False)
    content = json.loads(capsys.readouterr().out)
    assert content["images"] == 72 and sum(content["counts"].values()) + content["none"] == 72
    assert content["estimate"]["total"] == 9
    app([*map(str, words), "--json", "--model", "tac-glyphs"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["about"]["embedder"] == "run:tac-glyphs"


@pytest.fixture
def head(tmp_path_factory, monkeypatch) -> Head:
    """A head that comes along for a model: of those that do, none is for a model that is small."""
    folder = tmp_path_factory.mktemp("heads")
    made = Head("conv4:glyphs", 64, np.eye(64, dtype=np.float32))
    made.save(folder / "conv4--glyphs.safetensors")
    monkeypatch.setattr("handful.estimator.head._HERE", folder)
    return made


@pytest.mark.parametrize(
    "model",
    [
        ["--model", "tac-glyphs"],
        ["--model", "glyphs"],
        ["--model", str(model_folder("tac-glyphs"))],
        ["--embedder", "run:glyphs"],
        ["--embedder", "conv4:glyphs"],
        ["--embedder", "conv4:tac-glyphs"],
    ],
)
def test_the_head_of_a_model_is_found_however_the_model_is_named(photos, labels, head, tmp_path, capsys, model):
    words = ["label", str(photos), "--labels", str(labels), "--out", str(tmp_path / "out"), "--no-report", "--json"]
    app([*words, *model, "--head", "auto"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["about"]["head"] == "conv4:glyphs"


def test_no_head_is_used_unless_it_is_asked_for(photos, labels, head, tmp_path, capsys):
    """Those that come with handful gain nothing on photographs of other domains."""
    words = ["label", str(photos), "--labels", str(labels), "--out", str(tmp_path / "out"), "--no-report", "--json"]
    app([*words, "--model", "glyphs"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["about"]["head"].startswith("none:")
    found = find_labels(photos, labels, embedder="run:glyphs")
    assert found.fitted.images.head is None
    assert find_labels(photos, labels, embedder="run:glyphs", head="auto").fitted.images.head is not None


def test_a_folder_with_the_name_of_a_model_does_not_get_its_head(head, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert head_of("run:glyphs") is not None
    assert load_head("run:tac-glyphs").name == "conv4:glyphs"
    (tmp_path / "glyphs").mkdir()
    assert head_of("run:glyphs") is None
    assert head_of("conv4:glyphs") is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--labels", "nowhere.csv"], "cannot read the labels in nowhere.csv"),
        (["--embedder", "magic"], "unknown embedder 'magic'"),
        (["--embedder", "no_module:f"], "cannot import the embedder no_module:f"),
        (["--embedder", "json:magic"], "the module json has no 'magic'"),
        (["--embedder", "onnx:nothing.onnx"], "onnx"),
        (["--embedder", "npy:nothing.npy"], "there are no vectors at nothing.npy"),
        (["--none-threshold", "2"], "--none-threshold must be between 0 and 1, got 2.0"),
        (["--export-folders", "move"], "--export-folders takes copy or link, got 'move'"),
        (["--head", "magic"], "there is no head 'magic'"),
        (["--out", "INSIDE"], "lies among the images"),
    ],
)
def test_bad_input_is_one_sentence(photos, labels, embedder, tmp_path, capsys, monkeypatch, change, sentence):
    before = tree(tmp_path)
    words = ["handful", "label", photos, "--labels", labels, "--out", tmp_path / "out", "--embedder", embedder]
    change = [str(photos / "out") if word == "INSIDE" else word for word in change]
    monkeypatch.setattr(sys, "argv", [str(word) for word in [*words, *change]])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert sentence in errors and "Traceback" not in errors
    after = {name: content for name, content in tree(tmp_path).items() if not name.startswith("cache/")}
    assert {name for name in after if "__pycache__" not in name} == set(before), "nothing is written"
