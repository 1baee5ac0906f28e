"""ResNet-12: its shapes, and that whatever takes CONV4 takes it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from handful import Episode, HandfulError
from handful.cli import app
from handful.embedders import load_embedder
from handful.embedders.backbones import backbone_options, build_backbone, for_inference, to_input
from handful.embedders.resnet12 import Dropout
from handful.embedders.shipped import CARD
from handful.methods import build_method, method_class, methods
from handful.runs.config import RunConfig
from handful.runs.episodes import Protocol, embed
from handful.runs.evaluation import evaluate_run
from handful.runs.export import export_run
from handful.runs.folder import load_run
from handful.runs.learner import build_learner
from handful.runs.training import train
from handful.sampling import EpisodeSpec

SMALL = {"width": 8}


@pytest.fixture(scope="module")
def config(blobs) -> RunConfig:
    return RunConfig(
        method="tac", dataset="glyphs", fingerprint=blobs["train"].fingerprint(), labelled_ratio=0.5, channels=1,
        image_size=28, backbone="resnet12", backbone_options={**SMALL, "dropout": 0.2}, train=EpisodeSpec(4, 1, 2, 2),
        validation=EpisodeSpec(4, 1, 3, 3), episodes=10, episodes_per_step=2, validate_every=4, validation_episodes=6,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(config, blobs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "resnet12"
    train(config, folder, blobs["train"], blobs["val"], accelerator="cpu")
    return folder


@pytest.mark.parametrize(("size", "channels"), [(16, 1), (28, 1), (37, 3), (84, 3)])
def test_dimension(size, channels):
    backbone = build_backbone("resnet12", channels, size).eval()
    vectors = backbone(to_input(torch.zeros(2, size, size, channels, dtype=torch.uint8)))
    assert vectors.shape == (2, 512)
    assert backbone.dim == 512
    assert backbone.feature_shape == (512, 1, 1)


def test_parameters_are_those_of_the_paper():
    """Each of four blocks: three 3 x 3 convolutions and a 1 x 1 shortcut, all with batch norm."""
    widths = [3, 64, 128, 256, 512]
    expected = sum(9 * (a * b + 2 * b * b) + a * b + 4 * 2 * b for a, b in pairwise(widths))
    backbone = build_backbone("resnet12", 3, 84)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == expected


def test_a_block_is_the_residual_plus_the_shortcut_then_relu_and_pooling():
    block = build_backbone("resnet12", 3, 28, **SMALL).eval().blocks[0]
    images = torch.randn(2, 3, 28, 28)
    expected = torch.nn.functional.max_pool2d(torch.relu(block.residual(images) + block.shortcut(images)), 2)
    torch.testing.assert_close(block(images), expected)
    assert [type(layer).__name__ for layer in block.residual] == [*["Conv2d", "BatchNorm2d", "ReLU"] * 2, "Conv2d",
                                                                  "BatchNorm2d"]  # fmt: skip


def test_folding_batch_norm_changes_nothing_but_the_speed():
    torch.manual_seed(0)
    backbone = build_backbone("resnet12", 3, 32, dropout=0.5)
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # as if trained
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    images = torch.randn(5, 3, 32, 32)
    folded = for_inference(backbone)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    with torch.inference_mode():
        torch.testing.assert_close(folded(images), backbone.eval()(images), atol=1e-5, rtol=1e-5)


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    torch.manual_seed(0)
    dropout, images = Dropout(0.3), torch.ones(4, 8, 50, 50)
    found = dropout(images)
    assert set(found.unique().tolist()) == {0.0, float(torch.tensor(1.0) / 0.7)}
    assert abs((found == 0).double().mean() - 0.3) < 0.01
    assert torch.equal(dropout.eval()(images), images)
    with pytest.raises(HandfulError, match="dropout of resnet12 must be from 0 to below 1, got 1"):
        build_backbone("resnet12", 1, 28, dropout=1.0)


def test_options_of_other_backbones_are_refused():
    assert backbone_options("conv4") == {
        "width": 64, "average_pool": False, "linear_output": False, "mirror": False, "whiten": 0
    }  # fmt: skip
    with pytest.raises(HandfulError, match="'resnet12' has no option 'average_pool': choose from width, dropout"):
        build_backbone("resnet12", 3, 84, average_pool=True)


def test_it_learns(config, blobs):
    """Steps on one episode of blobs lower its loss."""
    learner = build_learner(replace(config, backbone_options=SMALL)).train()
    images, labels = torch.from_numpy(blobs["train"].images), torch.from_numpy(blobs["train"].labels)
    rows = torch.stack([torch.nonzero(labels == label).flatten()[:4] for label in range(4)])  # (classes, images)
    query = rows[:, 2:].flatten()
    episode = Episode(
        images[rows[:, :1]], images[query], images[rows[:, 1]], labels[query], labels[rows[:, 1]]
    )  # fmt: skip
    optimiser = torch.optim.Adam(learner.parameters(), lr=1e-3)
    losses = []
    for _ in range(15):
        loss = learner(episode)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


class Killed(Exception):
    pass


def test_a_killed_run_with_dropout_resumes_to_the_same_weights(run, config, blobs, tmp_path):
    def kill(progress, _):
        if progress.episode == 6:
            raise Killed

    with pytest.raises(Killed):
        train(config, tmp_path / "run", blobs["train"], blobs["val"], accelerator="cpu", observe=kill)
    torch.manual_seed(999)
    train(config, tmp_path / "run", blobs["train"], blobs["val"], accelerator="cpu", resume=True)
    ours, theirs = (load_run(folder)[1].state_dict() for folder in (run, tmp_path / "run"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert (run / "metrics.jsonl").read_text() == (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_run_is_evaluated_is_an_embedder_and_is_exported(run, config, blobs, tmp_path):
    protocol = Protocol(config.validation, 0.4, splits=1, episodes=4)
    assert 0 <= evaluate_run(run, protocol, iterations=1, device="cpu").mean <= 100
    embedder = load_embedder(f"run:{run}", "cpu")
    images = blobs["test"].images[:6]
    expected = embed(load_run(run)[1].backbone, images).numpy()
    np.testing.assert_allclose(embedder.embed(images), expected, rtol=1e-4, atol=1e-5)
    assert embedder.dim == 64
    export_run(run, tmp_path / "model")
    assert "| embedder | resnet12 (width=8, dropout=0.2) |" in (tmp_path / "model" / CARD).read_text()
    assert load_embedder(f"run:{tmp_path / 'model'}", "cpu").embed(images).tolist() == embedder.embed(images).tolist()


class Asked(Exception):
    pass


@pytest.mark.parametrize("command", ["train", "grid"])
def test_the_commands_take_it(command, tmp_path, monkeypatch):
    def training(config, *_, **__):
        raise Asked(config.backbone)

    def cells(found, *_, **__):
        raise Asked(found[0].config.backbone)

    monkeypatch.setattr("handful.runs.training.train", training)
    monkeypatch.setattr("handful.experiments.grid.run_grid", cells)
    words = [command, "--method", "pn", "--backbone", "resnet12", "--out", str(tmp_path / "out"), "--device", "cpu"]
    with pytest.raises(Asked, match="resnet12"):
        app(words, standalone_mode=False)


MAPS = [name for name in methods() if method_class(name).reads_maps]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(
    ("backbone", "options", "shape"),
    [("resnet12", {"width": 32}, (256, 1, 1)), ("conv4", {"width": 16}, (16, 5, 5)), ("conv4", {}, (64, 5, 5))],
)
def test_methods_that_read_feature_maps_ask_the_backbone_for_their_shape(config, name, backbone, options, shape):
    """256 numbers of ResNet-12 are no 2 x 2 maps of 64 channels, although they could be."""
    learner = build_learner(
        replace(config, method=name, backbone=backbone, backbone_options=options, image_size=84, channels=3)
    )
    assert learner.method.map_shape == shape == learner.backbone.feature_shape
    assert math.prod(shape) == learner.backbone.dim


@pytest.mark.parametrize("name", MAPS)
def test_maps_need_not_be_square_but_must_be_of_the_vector_s_length(name):
    assert build_method(name, 60, 5, feature_shape=(10, 2, 3)).map_shape == (10, 2, 3)
    assert build_method(name, 64, 5, feature_shape=(64, 1, 1), channels=16).map_shape == (16, 2, 2), "chosen by hand"
    with pytest.raises(HandfulError, match=r"feature maps, but the backbone's feature_shape \(10, 2\) is not the"):
        build_method(name, 20, 5, feature_shape=(10, 2))
    with pytest.raises(HandfulError, match="a vector of length 61: use another backbone or method"):
        build_method(name, 61, 5, feature_shape=(10, 2, 3))
