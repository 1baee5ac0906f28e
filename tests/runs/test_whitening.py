"""`handful whiten`: the formula against a plain one, what becomes of a run, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handful import HandfulError
from handful.cli import main
from handful.embedders import load_embedder
from handful.runs.config import read_config
from handful.runs.folder import load_run
from handful.runs.whitening import whiten_run, whitening


def classes_with_a_nuisance(count=400, dim=12):
    """Five classes that differ in three directions, and whose images all differ most in two others."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 5
    scales = np.array([6.0, 4.0] + [0.5] * (dim - 2))
    centres = np.zeros((5, dim))
    centres[:, 2:5] = rng.normal(0, 2, (5, 3))
    points = 10.0 * np.eye(dim)[-1] + centres[labels] + rng.normal(0, 1, (count, dim)) * scales
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)


def test_all_directions_are_the_inverse_root_of_the_shrunk_covariance():
    points, labels = classes_with_a_nuisance()
    layer = whitening(points, labels, directions=12, shrinkage=0.5)
    unit = (points / points.norm(dim=1, keepdim=True)).double().numpy()
    within = np.concatenate([unit[labels == k] - unit[labels == k].mean(0) for k in range(5)])
    covariance = within.T @ within / len(within)
    shrunk = covariance / (least := 0.5 * np.trace(covariance) / 12) + np.eye(12)
    assert least > 0
    values, axes = np.linalg.eigh(shrunk)
    expected = points.double().numpy() @ (axes / np.sqrt(values)) @ axes.T
    np.testing.assert_allclose(layer(points).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_few_directions_are_those_in_which_a_class_varies_most():
    points, labels = classes_with_a_nuisance()
    layer = whitening(points, labels, directions=2, shrinkage=0.5)
    assert layer.directions[:, :2].square().sum() > 1.8, "the two that were made so"
    assert (layer.gains < 0.6).all()
    torch.testing.assert_close(layer.directions @ layer.directions.mT, torch.eye(2))
    assert (layer(points) - points).norm(dim=1).mean() > 1
    torch.testing.assert_close(whitening(points, labels, 2, 1e9)(points), points, rtol=1e-3, atol=1e-3)


def test_it_does_not_matter_in_which_order_images_come():
    points, labels = classes_with_a_nuisance()
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(labels)))
    one, other = whitening(points, labels, 3, 1.0), whitening(points[order], labels[order], 3, 1.0)
    torch.testing.assert_close(one(points), other(points), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("directions", "shrinkage"), [(0, 1.0), (13, 1.0), (3, 0.0), (3, float("nan"))])
def test_numbers_that_make_no_sense_are_refused(directions, shrinkage):
    points, labels = classes_with_a_nuisance()
    with pytest.raises(HandfulError, match="takes a number"):
        whitening(points, labels, directions, shrinkage)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whiten") / "start"
    main_ok("train", "--method", "classifier", "--set", "head=cosine", "--dataset", "glyphs", "--episodes", 3,
            "--validation-episodes", 5, "--device", "cpu", "--out", folder)  # fmt: skip
    return folder


def main_ok(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["handful", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code


def test_a_whitened_run_is_a_run(start, tmp_path):
    out = tmp_path / "whitened"
    main_ok("whiten", start, "--out", out, "--directions", 5, "--shrinkage", 2)
    assert read_config(out).backbone_options == {**read_config(start).backbone_options, "whiten": 5}
    plain, whitened = load_run(start)[1].backbone, load_run(out)[1].backbone
    images = torch.rand(4, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(whitened(images), whitened.whitening(plain(images)))
        assert (whitened(images) - plain(images)).norm() > 0.01 * plain(images).norm()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1)).astype(np.uint8)
    with torch.no_grad():
        expected = whitened(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1).numpy()
    np.testing.assert_allclose(load_embedder(f"run:{out}", "cpu").embed(pixels), expected, rtol=1e-3, atol=1e-3)
    main_ok("evaluate", out, "--method", "classifier-semi", "--splits", 1, "--episodes", 3, "--device", "cpu")
    run = tmp_path / "tac"
    main_ok("train", "--method", "tac", "--start", out, "--whiten", 5, "--dataset", "glyphs", "--episodes", 2,
            "--ways", 5, "--validation-episodes", 5, "--device", "cpu", "--out", run)  # fmt: skip
    learned = load_run(run)[1].backbone
    assert torch.equal(learned.whitening.directions, whitened.whitening.directions), "not learned"
    main_ok("train", "--method", "pn", "--start", out, "--dataset", "glyphs", "--episodes", 1, "--ways", 5,
            "--learning-rate", 1e-12, "--validation-episodes", 5, "--device", "cpu",
            "--out", tmp_path / "pn")  # fmt: skip
    weight = load_run(tmp_path / "pn")[1].backbone.blocks[0][0].weight
    torch.testing.assert_close(weight, plain.blocks[0][0].weight, msg="the backbone without its whitening")
    with pytest.raises(HandfulError, match="whitened already"):
        whiten_run(out, tmp_path / "again")
    with pytest.raises(HandfulError, match="exists and is not empty"):
        whiten_run(start, out)
