"""The comparison: its draws, its figures, and the command that makes a report of them."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from command import handful as run_command
from handful import HandfulError
from handful.estimator.benchmark import OURS, Answer, benchmark, calibration_error, outcome
from handful.estimator.kept import Kept
from handful.estimator.rivals import nearest_mean
from handful.estimator.tasks import Case, Task, draw


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


def test_absent_classes_have_labels_only(clouds):
    _, labels = clouds
    task = draw(labels, Case(3, "absent", rows=150), seed=0, number=0)
    free = np.bincount(task.truth[task.given < 0], minlength=6)
    assert (free == 0).sum() == 2
    assert (np.bincount(task.given[task.given >= 0]) == 3).all()


def test_none_of_these_is_right_exactly_for_rows_of_other_classes():
    """Rows: right, wrong, of the classes but called none, of others and called so, of others but not called so."""
    task = Task(np.arange(6), np.array([0, -1, -1, -1, -1, -1]), np.array([0, 0, 1, 1, -1, -1]))
    chances = np.array([[1, 0], [0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.6, 0.4], [0.5, 0.5]])
    none = np.array([False, False, False, True, True, False])
    for interval, covered in (((0.3, 0.5), 1.0), ((0.41, 0.5), 0.0)):
        found = outcome(task, Answer(chances, none=none, interval=interval), 0.0)
        assert (found.accuracy, found.overall, found.covered) == (pytest.approx(2 / 3), 2 / 5, covered)
        assert (found.false_none, found.found_none) == (pytest.approx(1 / 3), 0.5)
    silent = outcome(task, Answer(chances), 0.0)
    assert silent.overall == pytest.approx(2 / 5), "who never says none of these is wrong about others"
    assert np.isnan(silent.covered)


def test_what_is_kept_is_not_measured_again(clouds, tmp_path):
    calls = []

    def counted(shared, given, classes):
        calls.append(len(given))
        return nearest_mean(shared, given, classes)

    def measure(draws, **rivals):
        return benchmark({"clouds": clouds}, [Case(2)], draws=draws, rivals=rivals, jobs=1, kept=Kept(tmp_path))

    first = measure(2, mean=counted)
    assert len(calls) == 2
    more = measure(3, mean=counted)
    assert len(calls) == 3, "one more draw"
    assert {line.draws for line in more} == {3}
    with_other = measure(3, mean=counted, other=counted)
    assert len(calls) == 6, "of the new one"
    by_name = {line.classifier: line for line in with_other}
    assert by_name["mean"].mean["accuracy"] == by_name["other"].mean["accuracy"]
    again = {line.classifier: line for line in measure(2, mean=counted)}
    assert len(calls) == 6
    before = {line.classifier: line for line in first}["mean"]
    np.testing.assert_equal(again["mean"].mean, before.mean)
    np.testing.assert_equal(again["mean"].interval, before.interval)
    counted.code = "edited"
    measure(2, mean=counted)
    assert len(calls) == 8, "other code may say something else"
    (kept,) = (tmp_path / "cells").iterdir()
    kept.write_text("{")
    with pytest.raises(HandfulError, match="is damaged: remove it"):
        measure(2, mean=counted)


def test_a_comparison_that_is_cut_off_goes_on(clouds, tmp_path):
    calls = []

    def stops(shared, given, classes):
        calls.append(len(given))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return nearest_mean(shared, given, classes)

    def measure(kept):
        return benchmark({"clouds": clouds}, [Case(2)], draws=4, rivals={"mean": stops}, jobs=1, kept=kept)

    with pytest.raises(KeyboardInterrupt):
        measure(Kept(tmp_path))
    resumed = measure(Kept(tmp_path))
    assert len(calls) == 3 + 2, "the draws that were left"
    whole = measure(None)
    for one, other in zip(resumed, whole, strict=True):
        assert one.mean["accuracy"] == other.mean["accuracy"]


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
    assert re.search(rf"{len(x):,} x {x.shape[1]:,}, checksum [0-9a-f]{{16}}", page), "the data that it was measured on"
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


RIVAL = """
import numpy as np

def chance(x, given, classes):
    return np.full((len(x), classes), 1 / classes)

def broken(x, given, classes):
    raise RuntimeError("no such luck")

def wide(x, given, classes):
    return np.ones((len(x), classes + 1))
"""


def test_a_rival_of_the_user_s_own_stands_beside_the_others(clouds, tmp_path):
    x, labels = clouds
    np.savez(tmp_path / "clouds.npz", X=x, y=labels)
    (tmp_path / "mine.py").write_text(RIVAL)

    def run(out, *rivals, jobs=1):
        given = [word for rival in rivals for word in ("--rival", rival)]
        few = ["--labels", 2, "--draws", 2, "--rows", 90, "--shape", "absent", "--rivals", "mean,lda", "--jobs", jobs]
        return run_command("compare", tmp_path / "clouds.npz", "--out", tmp_path / out, *few, *given)

    for jobs in (1, 2):
        found = run(f"out{jobs}", f"guess={tmp_path / 'mine.py'}:chance", jobs=jobs)
        assert found.returncode == 0, found.stderr
    rows = list(csv.DictReader((tmp_path / "out2" / "comparison.csv").open(encoding="utf-8")))
    assert [row["classifier"] for row in rows] == [OURS, "LDA (shrunk)", "nearest class mean", "guess"]
    assert {row["shape"] for row in rows} == {"absent"}
    assert rows[0]["covered"] != "nan"
    guess = rows[-1]
    assert float(guess["confidence"]) == pytest.approx(1 / 6)
    file = tmp_path / "mine.py"
    for text, words in {
        "guess": "write NAME=FILE.py:FUNCTION",
        f"guess={file}:luck": "has no function 'luck'",
        f"guess={tmp_path / 'none.py'}:chance": "cannot read",
        f"guess={file}:broken": "mine.py:8) fails: RuntimeError: no such luck",
        f"guess={file}:wide": "must return finite probabilities of the shape",
        f"{OURS}={file}:chance": "choose another name",
    }.items():
        refused = run("refused", text)
        assert refused.returncode == 2, text
        assert words in " ".join(refused.stderr.split()), text
