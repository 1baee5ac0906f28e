"""Which rows to label next: what is chosen, that nothing is random, and that it is worth more than a random choice."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits

from command import handful as run_command
from handful.estimator import suggestions
from handful.estimator.benchmark import OURS
from handful.estimator.kept import Kept
from handful.estimator.learning import PER_ROUND, RANDOM, ROUNDS, learning_curves
from handful.estimator.suggestions import EVERY, SHARPNESS, doubt, suggest
from handful.estimator.tasks import Case


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    vectors = unit(rng.normal(size=(8, 10))[rng.integers(8, size=300)] + 0.4 * rng.normal(size=(300, 10)))
    return vectors.astype(np.float32), rng.dirichlet(np.full(5, 0.4), 300), rng.random(300)


def test_the_choice_is_the_greedy_covering(rows):
    """Computed anew for every row and step, without the shortcut."""
    vectors, soft, rates = rows
    labelled = np.arange(0, 300, 30)
    chosen = suggest(vectors, soft, rates, labelled, 12)
    assert len(set(chosen)) == 12
    assert not set(chosen) & set(labelled)
    ordered = np.sort(soft, axis=1)
    known = np.minimum(1, rates / 0.1)
    weights = (1 - ordered[:, -1] + ordered[:, -2] + EVERY) * known
    alike = np.exp(SHARPNESS * (vectors.astype(np.float64) @ vectors.T - 1))
    taken, expected = list(labelled), []
    for _ in range(12):
        nearest = alike[:, taken].max(1)
        gains = known * np.array([weights @ np.maximum(alike[:, row] - nearest, 0) for row in range(300)])
        taken.append(int(gains.argmax()))
        expected.append(taken[-1])
    assert chosen.tolist() == expected


@pytest.mark.parametrize("most", [2000, 150])
def test_the_order_of_rows_and_classes_does_not_matter(rows, most, monkeypatch):
    monkeypatch.setattr(suggestions, "MOST", most)
    vectors, soft, rates = rows
    order = np.random.default_rng(1).permutation(300)
    place = np.argsort(order)
    first = suggest(vectors, soft, rates, np.arange(5), 10)
    again = suggest(vectors[order], soft[order][:, ::-1], rates[order], place[:5], 10)
    assert order[again].tolist() == first.tolist()


def test_the_middle_of_a_doubtful_cluster_is_asked_for_once_and_outliers_are_not():
    rng = np.random.default_rng(0)
    directions = np.eye(6)
    cloud = [unit(directions[k] + 0.15 * rng.normal(size=(40, 6))) for k in range(3)]
    vectors = np.concatenate([*cloud, directions[3:5]])  # three clusters and two rows that stand alone
    soft = np.full((122, 2), 0.5)
    soft[:40] = [1, 0]  # nothing is unsure in the first
    chosen = suggest(vectors, soft, None, np.array([0]), 2)
    assert sorted(chosen // 40) == [1, 2]
    for row in chosen:
        assert directions[row // 40] @ vectors[row] > np.median(cloud[row // 40][:, row // 40])


def test_rows_that_look_foreign_are_left(rows):
    vectors, soft, _ = rows
    rates = np.where(np.arange(300) < 150, 0.001, 0.5)
    chosen = suggest(vectors, soft, rates, np.arange(290, 300), 10)
    assert (chosen >= 150).all()


def test_edges(rows):
    vectors, soft, rates = rows
    assert len(suggest(vectors, soft, rates, np.arange(300), 5)) == 0
    assert len(suggest(vectors, soft, rates, np.arange(5), 0)) == 0
    assert sorted(suggest(vectors, soft, rates, np.arange(297), 5)) == [297, 298, 299]
    assert len(suggest(vectors[:40], soft[:40, :1], None, np.zeros(0, dtype=np.int64), 3)) == 3
    assert doubt(np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]]), np.array([0, 1])) == pytest.approx([0.5, 1.0])


def test_suggested_labels_are_worth_more_than_random_ones():
    x, labels = load_digits(return_X_y=True)
    cases = [Case(1, "tail", rows=600)]
    curves = {one.way: one for one in learning_curves({"digits": (x, labels)}, cases, draws=4, jobs=1)}
    ours = curves[OURS]
    assert (ours.ahead[0], *curves[RANDOM].ahead) == (0,) * (ROUNDS + 2), "all begin alike, and random is behind nobody"
    assert len(ours.mean) == ROUNDS + 1
    assert ours.mean[-1] > ours.mean[0] + 0.1
    assert ours.gain == pytest.approx(ours.ahead[1:].mean())
    assert ours.gain > 0.01


def test_curves_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 40)
    source = {"clouds": (rng.normal(size=(4, 12))[labels] + rng.normal(size=(160, 12)), labels)}
    first = learning_curves(source, [Case(1, foreign=0.4)], draws=2, jobs=1, kept=Kept(tmp_path))
    ticks = []
    again = learning_curves(source, [Case(1, foreign=0.4)], draws=2, jobs=1, kept=Kept(tmp_path),
                            bar=lambda *_: ticks.append)  # fmt: skip
    assert ticks == [2], "nothing was left to do"
    for one, other in zip(first, again, strict=True):
        assert one.mean.tolist() == other.mean.tolist()


def test_the_command_writes_the_curves(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 50)
    np.savez(tmp_path / "clouds.npz", X=rng.normal(size=(3, 12))[labels] + rng.normal(size=(150, 12)), y=labels)
    out = tmp_path / "out"
    words = ["compare", tmp_path / "clouds.npz", "--out", out, "--draws", 2, "--jobs", 1, "--suggestions"]
    found = run_command(*words, "--shape", "even")
    assert found.returncode == 0, found.stderr
    assert "points ahead of a random choice" in found.stdout
    rows = list(csv.DictReader((out / "suggestions.csv").open(encoding="utf-8")))
    assert {(row["shape"], row["labels"]) for row in rows} == {
        (f"even, {start} a class", str(PER_ROUND * number)) for start in (1, 2) for number in range(ROUNDS + 1)
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Learning curves" in page
    assert "150 x 12, checksum " in page
    assert (out / "curves.png").exists()
    refused = run_command(*words, "--rivals", "lda")
    assert refused.returncode == 2
    assert "leave out --rivals" in refused.stderr
