"""CONV4 by ONNX Runtime: the vectors of PyTorch's form, from the folders of runs, and what is no such folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from handful import HandfulError
from handful.checkpoint import load_checkpoint, save_checkpoint
from handful.embedders import load_embedder
from handful.embedders.conv4 import Conv4
from handful.embedders.conv4_graph import Conv4Settings
from handful.embedders.networks import backbone_in_torch
from handful.embedders.runtime import RuntimeNetwork, kept_graph
from handful.embedders.shipped import model_folder, models


def pixels(size, channels, count=40):
    """Images with some structure: coarse blocks with noise on them."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 200, (count, 7, 7, channels)).repeat(-(-size // 7), 1).repeat(-(-size // 7), 2)
    return (coarse[:, :size, :size] + rng.integers(0, 56, (count, size, size, channels))).astype(np.uint8)


def smallest_cosine(one, other):
    return ((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min()


def write_run(folder, channels, size, **options):
    """A run folder with random weights, and statistics of its batch norms as after some training."""
    torch.manual_seed(0)
    network = Conv4(channels, size, **options)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values in (module.weight, module.bias, module.running_mean):
                torch.nn.init.normal_(values, 0.5, 0.3)
            torch.nn.init.uniform_(module.running_var, 0.2, 3.0)
    if options.get("whiten"):
        torch.nn.init.orthogonal_(network.whitening.directions)
        torch.nn.init.uniform_(network.whitening.gains, 0.3, 1.0)
    tensors = {f"model.backbone.{name}": value for name, value in network.state_dict().items()}
    (folder / "checkpoint").mkdir(parents=True)
    save_checkpoint(folder / "checkpoint", "best", tensors, {})
    settings = {"backbone": "conv4", "backbone_options": options, "channels": channels, "image_size": size}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("model", models())
def test_models_that_come_along_have_the_vectors_of_pytorch(model):
    fast, slow = load_embedder(f"run:{model}", "cpu"), backbone_in_torch(f"run:{model}", model_folder(model), "cpu")
    assert isinstance(fast, RuntimeNetwork)
    assert (fast.dim, fast.image_size, fast.channels) == (slow.dim, slow.image_size, slow.channels)
    assert fast.weights == slow.weights, "a model of vectors of one takes vectors of the other"
    images = pixels(fast.image_size, fast.channels)
    assert smallest_cosine(fast.embed(images), slow.embed(images)) > 0.99999


@pytest.mark.parametrize(
    ("channels", "size", "options"),
    [
        (1, 28, {}),
        (3, 84, {"width": 8}),
        (3, 33, {"average_pool": True}),
        (3, 45, {"linear_output": True, "width": 5}),
        (1, 64, {"average_pool": True, "linear_output": True}),
        (3, 45, {"linear_output": True, "mirror": True}),
        (3, 33, {"linear_output": True, "mirror": True, "whiten": 3}),
    ],
)
def test_any_form_of_the_network(tmp_path, channels, size, options):
    run = write_run(tmp_path / "run", channels, size, **options)
    fast, slow = load_embedder(f"run:{run}", "cpu"), backbone_in_torch("slow", run, "cpu")
    assert isinstance(fast, RuntimeNetwork) and fast.weights == slow.weights and fast.dim == slow.dim
    images = pixels(size, channels)
    ours, theirs = fast.embed(images), slow.embed(images)
    assert smallest_cosine(ours, theirs) > 0.99999
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1), rtol=1e-4)
    names = list(Conv4(channels, size, **options).state_dict())
    assert names == list(Conv4Settings(channels, size, **options).shapes())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"backbone_options": {"depth": 3}}, "the backbone 'conv4' has no option 'depth': choose from width"),
        ({"backbone_options": {"width": "wide"}}, "the option 'width' of conv4 should be int, got 'wide'"),
        ({"backbone_options": {"width": 0}}, "conv4 has from 1 to 65536 filters, got a width of 0"),
        (
            {"backbone_options": {"width": 32}},
            r"do not fit its settings: blocks.0.0.weight has the shape \(64, 1, 3, 3",
        ),
        ({"image_size": 20}, "conv4 takes images of 28 x 28 or more, got 20 x 20"),
        ({"image_size": 5000}, "takes images of 5000, more than the 4096 of an embedder"),
        ({"channels": 2}, "conv4 takes images of 1 or 3 channels, got 2"),
        ({"backbone": 4}, "is not the settings of a run: backbone should be str"),
    ],
)
def test_settings_that_are_no_network(tmp_path, change, sentence):
    shutil.copytree(model_folder("tac-glyphs"), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(HandfulError, match=sentence):
        load_embedder(f"run:{tmp_path / 'run'}", "cpu")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda t: t.pop("model.backbone.blocks.1.1.bias"), r"do not fit its settings: blocks.1.1.bias is one of them"),
        (lambda t: t.update({"model.backbone.more": torch.ones(1)}), "do not fit its settings: more is one of them"),
        (
            lambda t: t["model.backbone.blocks.2.0.weight"].fill_(torch.nan),
            "blocks.2.0.weight has numbers that are not",
        ),
        (lambda t: t["model.backbone.blocks.2.0.weight"].zero_(), "nonsense .blocks.2.0.weight is all zeros"),
        (lambda t: t["model.backbone.blocks.0.1.running_var"].neg_(), "running_var has negative variances"),
    ],
)
def test_weights_that_are_no_network(tmp_path, damage, sentence):
    run = write_run(tmp_path / "run", 1, 28)
    tensors, state = load_checkpoint(run / "checkpoint", "best")
    damage(tensors)
    save_checkpoint(run / "checkpoint", "best", tensors, state)
    with pytest.raises(HandfulError, match=sentence):
        load_embedder(f"run:{run}", "cpu")


def test_a_graph_is_written_once_and_again_if_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path))
    written = []

    def write():
        written.append(1)
        return b"graph"

    assert [kept_graph("a", "1", write) for _ in range(3)] == [b"graph"] * 3 and len(written) == 1
    (path,) = (tmp_path / "networks").iterdir()
    for damaged in (b"", path.read_bytes()[:-1], b"x" + path.read_bytes()[1:]):
        path.write_bytes(damaged)
        assert kept_graph("a", "1", write) == b"graph" == kept_graph("a", "1", write)
    assert len(written) == 4
    assert kept_graph("a", "2", write) == b"graph" and len(written) == 5, "other weights"
