"""What the screen and the report say of the labels that were found: true, bounded, whatever the names are."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, write_labels

from handful.cli import app
from handful.datasets.images import BrokenImage
from handful.labelling import Labelling, Prediction, find_labels, label_images
from handful.labelling import report as reports
from handful.labelling.report import MAPPED_CLASSES, SHOWN, SHOWN_CLASSES, draw_map, report_files


class Nothing:
    """Files none of which can be read; which were asked for."""

    path, top = Path("photos"), ""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, name: str) -> bytes:
        self.asked.append(name)
        raise BrokenImage("not there")


def labelling(classes: list[str], images: int) -> Labelling:
    """Images that were given classes in turn; the first of each was labelled, and the first classes are doubtful."""
    found = [
        Prediction(f"{index:06}.png", label := classes[index % len(classes)], 0.3 if label < "class 0060" else 0.9,
                   classes[0], 0.1, False, "given" if index < len(classes) else "predicted")
        for index in range(images)
    ]  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(images, 4)).astype(np.float32)
    return Labelling(found, vectors, classes, {}, 0.5, [], None, {})


@pytest.fixture
def no_tsne(monkeypatch):
    monkeypatch.setattr(reports, "flattened", lambda vectors: np.asarray(vectors[:, :2]))


def command(capsys, *words: object) -> tuple[str, str]:
    capsys.readouterr()
    app(["label", *map(str, words)], standalone_mode=False)
    return capsys.readouterr()


def map_row(label: str, index: int = 0, is_none: bool = False) -> dict[str, object]:
    return {"path": "x", "x": index, "y": index, "label": label, "is_none": is_none, "source": "predicted"}


def legend_of(rows) -> list[str]:
    return [text.get_text() for text in draw_map(rows).legends[0].get_texts()]


def test_a_report_of_very_many_classes(tmp_path, no_tsne):
    classes, files = [f"class {index:04}" for index in range(3000)], Nothing()
    found = labelling(classes, 9000)
    written = report_files(found, files, "x")
    page, text = (written[f"report.{kind}"].decode() for kind in ("html", "md"))
    assert len(files.asked) <= SHOWN_CLASSES * 2 * SHOWN
    assert page.count("<h2>class ") == SHOWN_CLASSES
    assert f"the other {3000 - SHOWN_CLASSES:,} classes are in predictions.csv" in page
    assert "<h2>class 0001: 3 images" in page, "one of the doubtful"
    assert "<h2>class 2999" not in page
    assert all(f'<span class="">{name}</span>' in page and f"| {name} |" in text for name in classes), "all are counted"
    assert len(written["report.html"]) < 5_000_000


def test_the_work_grows_with_the_images_not_with_the_classes_times_the_images(tmp_path, no_tsne, monkeypatch):
    looks = 0

    class Counted(list):
        def __iter__(self):
            nonlocal looks
            looks += 1
            return super().__iter__()

    found = labelling([f"class {index:04}" for index in range(200)], 400)
    object.__setattr__(found, "predictions", Counted(found.predictions))
    report_files(found, Nothing(), "x")
    assert looks < 20


def test_the_legend_of_a_map_of_very_many_classes(tmp_path):
    rows = [map_row(f"class {index % 300:03}", index) for index in range(900)] + [map_row("class 299")] * 5
    names = legend_of([*rows, map_row("none of these", is_none=True)])
    assert len(names) == MAPPED_CLASSES + 3
    assert names[0] == "none of these (1)" and "class 299 (8)" in names
    assert names[-2:] == [f"{300 - MAPPED_CLASSES} more classes ({900 - 3 * MAPPED_CLASSES})", "labelled by you"]


def test_every_name_is_in_the_legend_of_the_map(tmp_path):
    labels = ["_private", "$\\frac{1$", "$x$", "$", "none of these", "猫", "x" * 200]
    figure = draw_map([map_row(label) for label in labels])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reports.Report("x").picture(figure, "x", "map", [])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == len(labels) + 1 and max(map(len, names)) <= 40
    for label in labels[:-1]:
        assert f"{label} (1)" in names


def test_the_screen_shows_the_largest_of_many_classes(photos, embedder, tmp_path, capsys):
    rows = [(f"day {index % 2}/{index:02d}.png", f"class {index:02d}") for index in range(60)]
    table = write_labels(tmp_path / "labels.csv", rows)
    out, _ = command(
        capsys, photos, "--labels", table, "--out", tmp_path / "out", "--embedder", embedder, "--no-report"
    )
    assert sum(line.lstrip().startswith("class ") for line in out.splitlines()) == 40
    assert "... and 20 more classes of " in out and "see predictions.csv" in out


def test_what_was_not_read_is_said_to_be_where_it_is(photos, labels, embedder, tmp_path, capsys):
    for index in range(13):
        (photos / f"broken {index:02}.png").write_bytes(b"")
    words = [photos, "--labels", labels, "--out", tmp_path / "out", "--embedder", embedder]
    _, errors = command(capsys, *words, "--no-report")
    assert errors.count("empty file") == 10 and "not read: 3 more: --json names them all" in errors
    assert "report" not in errors
    content = json.loads(command(capsys, *words, "--no-report", "--json")[0])
    assert len(content["broken"]) == 13
    _, errors = command(capsys, *words)
    assert f"not read: 3 more: named in {tmp_path / 'out' / 'report.html'}" in errors
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f"broken {index:02}.png" in page for index in range(13))


def test_a_folder_that_cannot_be_listed_is_named(photos, labels, embedder, tmp_path, capsys, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    (photos / "locked").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    words = [photos, "--labels", labels, "--out", tmp_path / "out", "--embedder", embedder]
    _, errors = command(capsys, *words)
    assert "not read: locked: a folder that cannot be listed: Permission denied" in errors
    assert "<dt>locked</dt>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert json.loads(command(capsys, *words, "--no-report", "--json")[0])["broken"].keys() == {"locked"}


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_no_text_or_would_control_a_terminal(photos, embedder, tmp_path, capsys):
    top = os.fsencode(photos)
    for index, name in enumerate((b"/caf\xe9.png", b"/\x1b[2J[bold].png", b"/\xe2\x80\xaegpj.png", b"/a\nb.png")):
        shutil.copy(photos / "day 0" / f"0{2 * index}.png", os.fsdecode(top + name))
    (photos / os.fsdecode(b"\xff\x1b.png")).write_bytes(b"")
    rows = [("caf\\udce9.png", "red"), ("day 1/01.png", "green"), ("day 0/02.png", "blue")]
    table = write_labels(tmp_path / "labels.csv", rows)
    words = [photos, "--labels", table, "--out", tmp_path / "out", "--embedder", embedder, "--suggestions", 100]
    texts = [*command(capsys, *words), *command(capsys, *words, "--no-report", "--json")]
    assert all(text.replace("\n", "").isprintable() for text in texts)
    assert "\\x1b[2J[bold].png" in texts[0] and "not read: \\udcff\\x1b.png: empty file" in texts[1]
    assert (
        "caf\udce9.png" not in json.loads(texts[2])["label_next"] and "a\nb.png" in json.loads(texts[2])["label_next"]
    )
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        paths = {row["path"]: row["source"] for row in csv.DictReader(file)}
    assert paths["caf\\udce9.png"] == "given" and "\x1b[2J[bold].png" in paths
    page, text = ((tmp_path / "out" / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert "\x1b" not in page + text and "\u202e" not in page + text
    assert "caf\\udce9.png" in (tmp_path / "out" / "map.csv").read_text(encoding="utf-8")


def test_classes_with_odd_names(photos, embedder, tmp_path):
    names = {"red": "_$x$", "green": "[b](c.d)|`e`", "blue": '<img src=x onerror="y">'}
    rows = [(f"day {index % 2}/{index:02d}.png", names[list(COLOURS)[index % 3]]) for index in range(9)]
    label_images(photos, write_labels(tmp_path / "labels.csv", rows), tmp_path / "out", embedder=embedder)
    page, text = ((tmp_path / "out" / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert "<img src=x" not in page + text.replace("\\<", "") and "[b](" not in text.replace("\\[", "")
    assert "_$x$ (" in (tmp_path / "out" / "map.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("confidence", [0.95, 0.59])
def test_doubtful_means_the_same_on_the_screen_in_the_table_and_in_the_galleries(
    photos, labels, embedder, tmp_path, monkeypatch, capsys, no_tsne, confidence
):
    """Images to label next are the least certain ones, which need not be doubtful."""

    def sure(*words, **options):
        found = find_labels(*words, **options)
        predictions = [replace(one, confidence=confidence, is_none=False) for one in found.predictions]
        return replace(found, predictions=predictions)

    monkeypatch.setattr("handful.labelling.find_labels", sure)
    out, _ = command(capsys, photos, "--labels", labels, "--embedder", embedder, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    summary, _, galleries = page.partition("<h2>Label these next")
    assert galleries and "Label next: " in out, "there is always something to label next"
    rows = re.findall(r"<tr>(<td.*?)</tr>", summary, flags=re.DOTALL)
    column = [int(last) for row in rows if (last := re.findall(r">([^<]*)</span></td>", row)[-1])]
    assert len(column) == 3, "a number for each class, and none for those of no class"
    said = int(re.search(r"(\d+) labels are doubtful \(less than 60% sure\)", out)[1])
    assert said == sum(column)
    assert (said > 0) == (confidence < 0.6)
    assert "doubtful" not in galleries.lower(), "what is shown there need not be"
