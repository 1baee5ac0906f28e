"""The comparison: its draws, its figures, and the command that makes a report of them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from command import handful as run_command
from handful import HandfulError
from handful.estimator.benchmark import OURS, Case, benchmark, calibration_error, draw
from handful.estimator.rivals import nearest_mean


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 40)
    return rng.normal(size=(6, 12))[labels] + 0.5 * rng.normal(size=(240, 12)), labels.astype(np.int64)


@pytest.mark.parametrize("foreign", [0.0, 0.4])
@pytest.mark.parametrize("shape", ["even", "tail"])
def test_a_draw_is_what_its_case_says(clouds, shape, foreign):
    _, labels = clouds
    for number in range(5):
        task = draw(labels, Case(3, shape, foreign, rows=150), seed=0, number=number)
        assert len(np.unique(task.rows)) == len(task.rows) <= 150 + 1
        known = task.given >= 0
        assert (task.given[known] == task.truth[known]).all()
        classes = 6 if not foreign else 3
        assert set(task.given[known]) == set(range(classes))
        sizes = np.bincount(task.truth[task.truth >= 0])
        assert (np.bincount(task.given[known]) == np.minimum(3, sizes // 2)).all()
        assert sizes.max() == sizes.min() if shape == "even" else sizes.max() > 3 * sizes.min()
        assert abs((task.truth[~known] < 0).mean() - foreign) < 0.03
        for label in range(classes):
            assert len(set(labels[task.rows[task.truth == label]])) == 1
        other = set(labels[task.rows[task.truth < 0]])
        assert not other & set(labels[task.rows[task.truth >= 0]])
    again = draw(labels, Case(3, shape, foreign, rows=150), seed=0, number=4)
    assert (again.rows == task.rows).all()


def test_two_classes_cannot_leave_others_over():
    with pytest.raises(HandfulError, match="3 classes or more"):
        draw(np.repeat(np.arange(2), 9), Case(1, foreign=0.4), 0, 0)


def test_calibration_error_of_a_known_case():
    sure = np.array([0.95] * 10 + [0.55] * 10)
    right = np.array([True] * 9 + [False] + [True] * 3 + [False] * 7)
    assert calibration_error(sure, right) == pytest.approx((0.05 + 0.25) / 2)


def test_the_first_is_behind_nobody_and_all_have_the_same_draws(clouds):
    cases = [Case(2), Case(2, "tail", 0.4)]
    rivals = {"mean": nearest_mean, "again": nearest_mean}
    lines = benchmark({"clouds": clouds}, cases, draws=3, rivals=rivals, jobs=1)
    for case in cases:
        own = {line.classifier: line for line in lines if line.case == case}
        assert own["mean"].mean["accuracy"] == own["again"].mean["accuracy"]
        judged = [name for name in own if np.isfinite(own[name].mean["accuracy"])]
        assert max(own[name].behind_first for name in judged) == 0
        assert own[OURS].mean["accuracy"] > 0.5
        assert np.isnan(own[OURS].mean["auroc"]) == (not case.foreign)


def test_the_command_writes_a_report_from_vectors(clouds, tmp_path):
    x, labels = clouds
    np.savez(tmp_path / "clouds.npz", X=x, y=np.array([f"class {k}" for k in labels]))
    out = tmp_path / "out"
    arguments = ["compare", tmp_path / "clouds.npz", "--out", out, "--labels", 2, "--labels", 5, "--draws", 2,
                 "--rows", 90, "--jobs", 1]  # fmt: skip
    found = run_command(*arguments)
    assert found.returncode == 0, found.stderr
    assert "even classes" in found.stdout
    rows = list(csv.DictReader((out / "comparison.csv").open(encoding="utf-8")))
    assert {(row["labels"], row["shape"]) for row in rows} == {
        ("2", "even"),
        ("5", "even"),
        ("2", "tail"),
        ("5", "tail"),
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("LaplacianShot", "PT-MAP", "BD-CSPN", "LogisticRegression", OURS))
    (out / "comparison.csv").write_text("mine")
    refused = run_command(*arguments)
    assert refused.returncode == 2
    assert "comparison.csv was changed" in refused.stderr
    assert (out / "comparison.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "words"),
    [({"X": np.ones((3, 2))}, "arrays X and y"), ({"X": np.ones((3, 2)), "y": [1, 1, 1]}, "has 1 class"),
     ({"X": np.full((3, 2), np.nan), "y": [0, 1, 1]}, "not finite"), ({"X": np.ones(3), "y": [0, 1, 1]}, "X must be")],
)  # fmt: skip
def test_vectors_that_cannot_be_compared_are_refused(tmp_path, content, words):
    np.savez(tmp_path / "bad.npz", **content)
    found = run_command("compare", tmp_path / "bad.npz", "--out", tmp_path / "out")
    assert found.returncode == 2
    assert words in found.stderr
    assert not (tmp_path / "out").exists()
