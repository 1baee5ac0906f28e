"""Labels for very many images: tables in a folder, the same labels as in one table."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, draw

sys.path.append(str(Path(__file__).parents[1] / "datasets"))
import layouts

from command import handful as handful_command
from handful import HandfulError, VectorFolder
from handful.labelling import label_images, predict_images
from handful.labelling.predict_shards import predict_sources


@pytest.fixture
def labelled(photos, labels, tmp_path) -> Path:
    label_images(photos, labels, tmp_path / "labelled", embedder="run:mini-imagenet", report=False, device="cpu")
    return tmp_path / "labelled"


@pytest.fixture
def new(tmp_path) -> Path:
    rng = np.random.default_rng(7)
    for index in range(40):
        draw(tmp_path / "new" / f"{index % 2}" / f"{index:02d}.png", COLOURS[list(COLOURS)[index % 3]], rng)
    (tmp_path / "new" / "0" / "text.png").write_text("no image")
    return tmp_path / "new"


def rows(folder: Path) -> dict[str, dict[str, str]]:
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                assert row["path"] not in found
                found[row["path"]] = row
    return found


def test_the_same_labels_as_in_one_table(labelled, new, tmp_path):
    whole = predict_images(new, labelled, tmp_path / "whole.csv", device="cpu")
    with (tmp_path / "whole.csv").open(encoding="utf-8", newline="") as file:
        wanted = {row["path"]: row for row in csv.DictReader(file)}
    content = {str(path.relative_to(new)): path.read_bytes() for path in new.rglob("*.png")}
    half = layouts.halves(content)
    sources = [layouts.tarred(tmp_path / "1.tar", half[0]), layouts.tarred(tmp_path / "2.tar", half[1])]
    how = {"form": "csv", "size": 8, "device": "cpu", "workers": 2}
    found, outcome = predict_sources(sources, labelled, tmp_path / "p", **how)
    got = rows(tmp_path / "p")
    assert {name: row["label"] for name, row in got.items()} == {name: row["label"] for name, row in wanted.items()}
    assert list(next(iter(got.values()))) == list(next(iter(wanted.values()))), "the same columns"
    for name, row in got.items():
        assert float(row["confidence"]) == pytest.approx(float(wanted[name]["confidence"]), abs=1.5e-4)
    assert found.counts == whole.counts and list(found.broken) == ["0/text.png"] and outcome.images == 40
    again, outcome = predict_sources(sources, labelled, tmp_path / "p", **how)
    assert outcome.images == 0 and again.counts == found.counts, "those of before are counted"
    assert not list((tmp_path / "p").glob("*.npy")), "no vectors are kept"


def test_vectors_are_kept_where_that_is_asked_for_and_are_a_source(labelled, new, tmp_path):
    plain, _ = predict_sources([new], labelled, tmp_path / "p", form="csv", size=8, device="cpu")
    kept, _ = predict_sources([new], labelled, tmp_path / "q", form="csv", size=8, device="cpu", vectors=tmp_path / "v")
    assert len(VectorFolder(tmp_path / "v")) == 40 and kept.counts == plain.counts
    from_disk, outcome = predict_sources([tmp_path / "v"], labelled, tmp_path / "r", form="csv", size=8)
    assert from_disk.counts == plain.counts and outcome.images == 40
    labels = [{name: row["label"] for name, row in rows(tmp_path / folder).items()} for folder in "pqr"]
    assert labels[0] == labels[1] == labels[2]


def test_parquet_has_the_columns_of_the_table(labelled, new, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    predict_sources([new], labelled, tmp_path / "p", size=16, device="cpu")
    predict_sources([new], labelled, tmp_path / "q", size=16, device="cpu", form="csv")
    wanted, seen = rows(tmp_path / "q"), 0
    for path in (tmp_path / "p").glob("*.parquet"):
        for row in parquet.read_table(path).to_pylist():
            assert list(row) == list(wanted[row["path"]]) and row["label"] == wanted[row["path"]]["label"]
            assert abs(sum(value for name, value in row.items() if name.startswith("p:")) - 1) < 1e-3
            seen += 1
    assert seen == 40


def test_the_command(labelled, new, tmp_path):
    done = handful_command(
        "predict", new, "--model", labelled, "--out", tmp_path / "p", "--format", "csv", "--device", "cpu", "--json"
    )
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["images"] == 40 and "not read: 0/text.png" in done.stderr
    (tmp_path / "bad.zip").write_bytes(b"x")
    done = handful_command(
        "predict", new, tmp_path / "bad.zip", "--model", labelled, "--out", tmp_path / "p", "--format", "csv",
        "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 1 and "bad.zip is not a zip archive" in done.stderr
    done = handful_command("predict", new, new, "--model", labelled, "--out", tmp_path / "p.csv")
    assert done.returncode == 2 and "give a folder for --out" in done.stderr


def test_what_is_refused(labelled, new, tmp_path, monkeypatch):
    with pytest.raises(HandfulError, match="unknown format 'xml'"):
        predict_sources([new], labelled, tmp_path / "p", form="xml")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HandfulError, match=r"pip install 'handful\[shards\]'; or choose --format csv"):
        predict_sources([new], labelled, tmp_path / "p")
