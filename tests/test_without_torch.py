"""The light install: what labels images runs where PyTorch is not installed, and the rest says what it needs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).with_name("without_torch.py")
NOTHING = "blocked and imported: []"
COLOURS = {"red": (200, 40, 40), "green": (40, 190, 60), "blue": (40, 60, 200)}


def start(*words, cwd, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HANDFUL_CACHE": str(cwd / "cache")}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, words)],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def run(*words, cwd, code=0):
    """Standard output and error of ``handful WORDS...``."""
    process = start(*words, cwd=cwd)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert NOTHING in err, err
    return out, err


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """A folder with ``photos``, a folder per colour, and ``labels.csv``, which names two of each."""
    folder, rng = tmp_path_factory.mktemp("album"), np.random.default_rng(0)
    rows = [("path", "label")]
    for name, colour in COLOURS.items():
        (folder / "photos" / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.clip(np.array(colour) + rng.normal(0, 25, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{index}.jpg")
        rows += [(f"{name}/{index}.jpg", name) for index in range(2)]
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


@pytest.fixture(scope="module")
def labelled(album) -> Path:
    """What ``handful label`` wrote for the photographs."""
    _, err = run("label", "photos", "--labels", "labels.csv", "--out", "out", cwd=album)
    assert "Written: out" in err
    return album / "out"


def test_label(labelled):
    with (labelled / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["path"].startswith(row["label"]) for row in rows)
    assert len(rows) == 36 and right >= 30, "a colour is easily told from another"
    page = (labelled / "report.html").read_text()
    assert "onnxruntime" in page and "<dt>torch</dt>" not in page, "what the vectors were computed with"
    assert (labelled / "map.png").stat().st_size > 1000


def test_predict(album, labelled):
    out, _ = run("predict", "photos/red", "--model", labelled, "--json", cwd=album)
    found = json.loads(out)
    assert found["images"] == 12 and found["counts"]["red"] >= 10


@pytest.mark.parametrize("head", ["none", "auto"])
def test_a_model_that_comes_along(album, head):
    words = ("--model", "mini-imagenet", "--head", head, "--labels", "labels.csv", "--no-report", "--json")
    out, _ = run("label", "photos", *words, "--out", f"mini-{head}", cwd=album)
    assert json.loads(out)["images"] == 36


def test_compare(album):
    words = ("--labels", "2", "--shape", "even", "--draws", "2", "--rivals", "logistic", "--jobs", "1")
    out, _ = run("compare", "photos", "--out", "comparison", *words, cwd=album)
    assert "Logistic" in out and (album / "comparison" / "report.html").exists()


def test_studio(album):
    process = start("studio", "photos", "--no-browser", cwd=album)
    try:
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.status == 200 and b"<html" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert NOTHING in err, err


def test_where_pytorch_is_installed_it_is_not_imported_either(album, labelled, monkeypatch):
    monkeypatch.setenv("UNBLOCKED", "1")
    run("label", "photos", "--labels", "labels.csv", "--out", "installed", cwd=album)
    run("predict", "photos/red", "--model", labelled, "--json", cwd=album)
    words = ("--labels", "2", "--shape", "even", "--draws", "2", "--rivals", "logistic", "--jobs", "1")
    run("compare", "photos", "--out", "compared", *words, cwd=album)
    test_studio(album)


def test_the_estimator_and_embed(album):
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import without_torch; without_torch.block()
import handful, numpy as np
vectors, names, broken = handful.embed("photos")
y = np.array([name.split("/")[0] if name.endswith(("/0.jpg", "/1.jpg")) else "" for name in names], dtype=object)
found = handful.TACClassifier().fit(vectors, y).transduction_
print(vectors.shape, np.mean([label == name.split("/")[0] for label, name in zip(found, names)]) > 0.8)
with_head = handful.TACClassifier(head="efficientnet-lite0").fit(vectors, y)
print(with_head.predict_proba(vectors).shape, "torch" in sys.modules)
try:
    handful.build_method
except ModuleNotFoundError as error:
    print(error)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HANDFUL_CACHE": str(album / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT.parent)], cwd=album, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "(36, 1280) True",
        "(36, 3) False",
        "handful.build_method needs PyTorch, which is not installed: pip install 'handful[research]'",
    ], done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [(["models"], "tac-omniglot"), (["datasets"], "mini-imagenet"), (["train", "--help"], "--method")],
)  # fmt: skip
def test_what_else_needs_no_pytorch(album, words, found):
    assert found in run(*words, cwd=album)[0]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--method", "tac", "--out", "runs/tac"],
        ["evaluate", "tac-glyphs"],
        ["demo"],
        ["methods"],
        ["bench"],
        ["grid", "--method", "tac", "--out", "grid"],
        ["reproduce", "table1", "--out", "table1"],
        ["head", "train", "--out", "h.safetensors", "--dataset", "glyphs", "--embedder", "run:glyphs"],
    ],
)
def test_what_needs_pytorch_says_so(album, words):
    before = sorted(album.iterdir())
    _, err = run(*words, cwd=album, code=2)
    sentence = " ".join(err.replace(NOTHING, "").split())
    assert "needs PyTorch" in sentence and sentence.endswith("pip install 'handful[research]'"), err
    assert "Traceback" not in err and len(sentence) < 150
    assert {path.name for path in album.iterdir()} - {path.name for path in before} <= {"cache"}, "nothing was begun"


def test_a_graphics_card_needs_pytorch(album):
    _, err = run("label", "photos", "--out", "cuda", "--device", "cuda", cwd=album, code=2)
    assert "--device cuda needs PyTorch, which is not installed: pip install 'handful[research]'" in err
