"""What is measured against each other computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handful import TACClassifier
from handful.bench import BENCHES, draw, embed, evaluate, fit, plain
from handful.bench.measure import in_turns
from handful.bench.train import _Stepper
from handful.sampling import EpisodeSpec


def test_the_plain_way_gives_the_same_accuracies():
    task = evaluate.make_task(dim=640)
    assert task.ours(6) == pytest.approx(task.plainly(6), abs=1e-9)
    assert 30 < task.ours(6) < 100, "too easy or too hard to tell a difference"


def test_the_plain_loop_over_prototypes_gives_the_same_accuracies():
    task = evaluate.make_task(dim=640)
    assert task.our_prototypes(20) == pytest.approx(task.prototypes(20), abs=1e-9)


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_plain_loop_has_the_same_loss_curve(double):
    spec = EpisodeSpec(ways=3, shots=1, queries=2, unlabelled=2)
    ours, theirs = (_Stepper(way, spec, 28) for way in ("ours", "plain"))
    curves = [[stepper.step() for _ in range(6)] for stepper in (ours, theirs)]
    assert curves[0] == pytest.approx(curves[1], abs=1e-10)
    assert curves[0][0] != pytest.approx(curves[0][-1], abs=1e-3), "it learns"


def test_the_null_space_spelled_out_forgets_the_errors():
    errors = torch.randn(3, 12)
    space = plain.null_space(errors)
    assert space.shape == (12, 9)
    torch.testing.assert_close(errors @ space, torch.zeros(3, 9), atol=1e-5, rtol=0)


def test_the_estimator_and_the_plain_way_give_the_same_labels():
    rng = np.random.default_rng(0)
    labels = rng.integers(fit.WAYS, size=2000)
    labels[: fit.WAYS * fit.SHOTS] = np.repeat(np.arange(fit.WAYS), fit.SHOTS)
    x = (rng.normal(size=(fit.WAYS, 64))[labels] + 0.8 * rng.normal(size=(2000, 64)) + 1).astype(np.float32)
    y = np.where(np.arange(2000) < fit.WAYS * fit.SHOTS, labels, -1)
    found = TACClassifier(iterations=fit.ITERATIONS).fit(x, y)
    unknown = y < 0
    assert (found.transduction_ == fit._plain(None, x, y))[unknown].mean() > 0.995


def test_fit_and_refit_are_measured_beside_plain_ways():
    found = fit.bench_fit(1, points=3000)
    assert [row["way"] for row in found.rows] == [
        "fit", "refit unchecked", "refit", "soft k-means", "logistic regression", "LabelSpreading",
    ]  # fmt: skip
    assert {(row["rows"], row["features"]) for row in found.rows} == {(3000, fit.DIM)}
    assert found.rows[0]["times fit"] == 1
    assert all(row["seconds"] > 0 for row in found.rows)


def test_turns_are_taken_and_the_first_does_not_count():
    order = []
    seconds = in_turns({name: lambda name=name: order.append(name) for name in "ab"}, 2)
    assert order == ["a", "b"] * 3
    assert set(seconds) == {"a", "b"}


def test_a_picture_for_every_curve():
    figure = draw({"ways": {"ours": [(2, 0.1), (5, 0.2)], "plain": [(2, 1.0), (5, 2.0)]}}, "title")
    assert [axis.get_xlabel() for axis in figure.axes] == ["ways"]
    assert list(BENCHES) == ["eval", "train", "project", "label", "fit", "embed"]


def test_both_ways_from_files_to_vectors_give_the_same(tmp_path, monkeypatch):
    ours, theirs, half = embed._networks()
    files = embed.photographs(tmp_path, (1200, 900), 3) + embed.photographs(tmp_path, (256, 256), 5)
    found = embed._ours(ours, files)
    for batch in (1, 4):
        plainly = embed._plainly(theirs, files, batch)
        assert embed.smallest_cosine(found, plainly) > 0.99, "but for how large JPEG files are decoded"
        assert embed.smallest_cosine(found[3:], plainly[3:]) > 0.99999
    assert 0.99 < embed.smallest_cosine(embed._in_batches(half, embed._decoded(ours, files)), found) < 0.99999
    monkeypatch.setattr(embed, "KINDS", {"small": ((300, 200), 4), "256 pixels": ((256, 256), 4)})
    bench = BENCHES["embed"](1)
    assert [row["JPEG files"] for row in bench.rows] == ["small"] * 3 + ["256 pixels"] * 3
    assert all(row["images per second"] > 0 for row in bench.rows) and bench.rows[0]["ours is faster"] == 1
    assert "decoding" in bench.facts["small, one core, an image"]
