"""Learning curves of runs, finished or not."""

from __future__ import annotations

import csv
import json

import pytest

from command import handful
from handful import HandfulError
from handful.reports.figures import learning_curves
from handful.runs.curves import curve_rows, late_gain
from handful.runs.writing import METRICS

TRAIN = ("--dataset", "glyphs", "--ways", 5, "--queries", 2, "--unlabelled", 2, "--episodes", 4, "--validate-every", 1,
         "--validation-episodes", 2, "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    for method in ("pn", "tac"):
        done = handful("train", "--method", method, *TRAIN, "--out", folder / method)
        assert done.returncode == 0, done.stderr
    return folder


def test_curves_of_two_runs(runs, tmp_path):
    done = handful("curves", runs / "pn", runs / "tac", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    found = {one["run"]: one for one in json.loads(done.stdout)}
    images = {"pn": 4 * 5 * 3, "tac": 4 * 5 * 5}
    assert {name: one["images"] for name, one in found.items()} == images, "PN sees no unlabelled images"
    with (tmp_path / "out" / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["episode"]) for row in rows] == [(run, str(n)) for run in images for n in (1, 2, 3, 4)]
    assert all((row["learned"] == "") == (row["run"] == "pn") for row in rows)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.html", "report.md", "curves.png"}
    assert len(learning_curves(curve_rows([runs / "pn", runs / "tac"])).axes) == 2
    assert len(learning_curves(curve_rows([runs / "pn"])).axes) == 1, "no references, no second panel"


def test_the_gain_is_that_of_the_last_third():
    rows = [{"images": 1e6 * n, "accuracy": 10.0 * n if n < 6 else 60.0} for n in range(10)]
    assert late_gain(rows) == 0
    assert late_gain(rows[:2]) is None


@pytest.mark.parametrize(
    "text", ["", "{\n", '{"episode": 3}\n', '{"episode": 1, "val_accuracy": NaN, "val_interval": 1}']
)
def test_damaged_or_missing_metrics_are_one_sentence(runs, tmp_path, text):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_bytes((runs / "pn" / "config.json").read_bytes())
    with pytest.raises(HandfulError, match="was not validated yet"):
        curve_rows([run])
    (run / METRICS).write_text(text)
    with pytest.raises(HandfulError, match=r"is damaged|was not validated yet"):
        curve_rows([run])
