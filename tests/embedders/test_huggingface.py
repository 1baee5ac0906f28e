"""``transformers:FOLDER``, with small models that are made here and saved as transformers saves them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from handful import HandfulError
from handful.embedders import load_embedder

transformers = pytest.importorskip("transformers", reason="needs transformers, which is among the dev requirements")
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VIT = {**TINY, "image_size": 32, "patch_size": 8}
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.5, 0.2]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    import socket

    monkeypatch.setattr(socket.socket, "connect", lambda *given: pytest.fail("it looks for something on the network"))


def save(model, folder, **preparation):
    """A model as transformers saves it, with how its images are prepared."""
    torch.manual_seed(0)
    model.save_pretrained(folder)
    preparation = {"size": {"height": 32, "width": 32}, "image_mean": MEAN, "image_std": STD, **preparation}
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation))
    return model.eval(), f"transformers:{folder}"


def vit(folder, kind="ViTModel", **preparation):
    torch.manual_seed(0)
    return save(getattr(transformers, kind)(transformers.ViTConfig(**VIT)), folder, **preparation)


def images(count=3, size=32):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def prepared(pixels):
    return torch.from_numpy((pixels / 255 - MEAN) / STD).permute(0, 3, 1, 2).float()


def change(path, **settings):
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_the_pooled_output_of_a_vit(tmp_path, capfd):
    model, name = vit(tmp_path)
    embedder = load_embedder(name, device="cpu")
    assert (embedder.dim, embedder.image_size, embedder.channels) == (16, 32, 3)
    with torch.inference_mode():
        expected = model(pixel_values=prepared(images())).pooler_output
    np.testing.assert_allclose(embedder.embed(images()), expected, rtol=1e-3, atol=1e-5)
    capfd.readouterr()
    load_embedder(name, device="cpu")
    assert capfd.readouterr() == ("", ""), "neither bars nor reports of transformers"


def test_the_class_token_where_the_pooler_has_no_weights(tmp_path):
    """A classifier is saved without one; transformers makes up a random one, anew in every process."""
    model, name = vit(tmp_path, "ViTForImageClassification")
    embedder = load_embedder(name, device="cpu")
    with torch.inference_mode():
        expected = model.vit(pixel_values=prepared(images())).last_hidden_state[:, 0]
    np.testing.assert_allclose(embedder.embed(images()), expected, rtol=1e-3, atol=1e-5)
    torch.manual_seed(1)
    assert load_embedder(name, device="cpu").key == embedder.key


def test_the_image_side_of_a_model_of_images_and_text(tmp_path):
    text = {**TINY, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config=VIT, projection_dim=8)
    model, name = save(transformers.CLIPModel(config), tmp_path)
    with torch.inference_mode():
        expected = model.vision_model(pixel_values=prepared(images())).pooler_output
    np.testing.assert_allclose(load_embedder(name, device="cpu").embed(images()), expected, rtol=1e-3, atol=1e-5)


def test_a_convolutional_network(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    model, name = save(transformers.ResNetModel(config), tmp_path)
    with torch.inference_mode():
        expected = model(pixel_values=prepared(images())).last_hidden_state.mean((2, 3))
    np.testing.assert_allclose(load_embedder(name, device="cpu").embed(images()), expected, rtol=1e-3, atol=1e-5)


def test_weights_in_half_precision_and_in_several_files(tmp_path):
    model, name = vit(tmp_path)
    whole = load_embedder(name, device="cpu").embed(images())
    (tmp_path / "model.safetensors").unlink()
    model.half().save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    embedder = load_embedder(name, device="cpu")
    np.testing.assert_allclose(embedder.embed(images()), whole, atol=1e-2)


@pytest.mark.parametrize(
    ("preparation", "size"),
    [
        ({"size": 32}, 32),
        ({"size": {"shortest_edge": 32}}, 32),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}, 32),
        ({"size": 32, "crop_size": 24, "do_center_crop": False}, 32),
    ],
)
def test_sizes_in_all_their_forms(tmp_path, preparation, size):
    _, name = vit(tmp_path, **preparation)
    assert load_embedder(name, device="cpu").image_size == size


def test_other_preparations(tmp_path):
    model, name = vit(tmp_path, do_normalize=False, do_rescale=False, do_flip_channel_order=True)
    flipped = torch.from_numpy(images()[..., ::-1].copy()).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        expected = model(pixel_values=flipped).pooler_output
    first = load_embedder(name, device="cpu")
    np.testing.assert_allclose(first.embed(images()), expected, rtol=1e-3, atol=1e-4)
    change(tmp_path / "preprocessor_config.json", do_flip_channel_order=False)
    assert load_embedder(name, device="cpu").key != first.key, "vectors are kept under the preparation as well"


def test_settings_are_part_of_the_key(tmp_path):
    _, name = vit(tmp_path)
    key = load_embedder(name, device="cpu").key
    change(tmp_path / "config.json", hidden_act="relu")
    assert load_embedder(name, device="cpu").key != key


def refused(name, sentence):
    with pytest.raises(HandfulError, match=sentence) as caught:
        load_embedder(name, device="cpu")
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("folder", ["google/vit-base-patch16-224", "\0", "a" * 5000])
def test_no_folder(folder):
    refused(f"transformers:{folder}", "there is no model folder at .* downloads nothing")


def test_nothing_behind_the_colon():
    refused("transformers:", "needs a folder with config.json")


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_files_that_are_missing_or_damaged(tmp_path, file):
    _, name = vit(tmp_path)
    content = (tmp_path / file).read_bytes()
    for damaged in (b"", b"[]", b"{}", content[: len(content) // 2]):
        (tmp_path / file).write_bytes(damaged)
        refused(name, file if file.endswith("json") and damaged != b"{}" else str(tmp_path))
    (tmp_path / file).unlink()
    refused(name, file)


def test_a_pickle_is_not_read(tmp_path):
    _, name = vit(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    refused(name, "only such weights are read, as loading pytorch_model.bin can execute code")


def test_code_beside_the_weights_is_not_executed(tmp_path):
    _, name = vit(tmp_path)
    code = f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Settings: pass\nclass Model: pass\n"
    (tmp_path / "modeling.py").write_text(code)
    classes = {"AutoConfig": "modeling.Settings", "AutoModel": "modeling.Model"}
    change(tmp_path / "config.json", auto_map=classes)
    assert load_embedder(name, device="cpu").dim == 16, "of a known type: the network of transformers"
    change(tmp_path / "config.json", model_type="made-up")
    refused(name, "transformers cannot load the model in ")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("value", ["someone/attention", {"": "someone/attention"}])
def test_kernels_are_not_fetched(tmp_path, key, value):
    _, name = vit(tmp_path)
    change(tmp_path / "config.json", **{key: value})
    refused(name, f"asks for {key} .*someone/attention.*: only eager and sdpa will do")
    change(tmp_path / "config.json", **{key: None}, vision_config={key: value})
    refused(name, "only eager and sdpa will do")


def test_settings_that_do_not_fit(tmp_path):
    _, name = vit(tmp_path)
    change(tmp_path / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    refused(name, "is of quantised weights")
    change(tmp_path / "config.json", quantization_config=None, hidden_size=24)
    refused(name, "transformers cannot load the model in .*")
    change(tmp_path / "config.json", hidden_size=16, num_hidden_layers=3)
    refused(name, r"are incomplete: they lack .*2\.")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_hidden_layers": 10**9}, "is damaged: num_hidden_layers is more than 1000"),
        ({"vision_config": {"depths": [2, 10**9]}}, "is damaged: depths is more than 1000"),
        ({"hidden_size": 10**6}, "transformers cannot load the model in "),
        ({"intermediate_size": 10**9}, "transformers cannot load the model in "),
        ({"image_size": 10**6}, "transformers cannot load the model in "),
        ({"num_attention_heads": 0}, "transformers cannot load the model in "),
    ],
)
def test_settings_of_huge_networks(tmp_path, settings, sentence):
    _, name = vit(tmp_path)
    change(tmp_path / "config.json", **settings)
    refused(name, sentence)


@pytest.mark.parametrize(
    ("preparation", "sentence"),
    [
        ({"size": {"height": 32, "width": 24}}, "should say the size of square images"),
        ({"size": None}, "should say the size of square images"),
        ({"size": {"height": [32], "width": [32]}}, "should say the size of square images"),
        ({"size": 10**6}, "should say the size of square images"),
        ({"size": True}, "should say the size of square images"),
        ({"image_mean": [0.5]}, "should give image_mean and image_std"),
        ({"image_std": [0.5, 0, 0.5]}, "should give image_mean and image_std"),
        ({"image_std": "wide"}, "should give image_mean and image_std"),
        ({"rescale_factor": None}, "should give image_mean and image_std"),
        ({"size": 24}, "the embedder transformers:.* fails: "),
    ],
)
def test_preparations_that_do_not_fit(tmp_path, preparation, sentence):
    _, name = vit(tmp_path, **preparation)
    refused(name, sentence)


def test_a_model_of_texts(tmp_path):
    config = transformers.BertConfig(**TINY, vocab_size=50)
    _, name = save(transformers.BertModel(config), tmp_path)
    refused(name, "is a BertModel, which takes input_ids: not images")


def test_a_model_that_hides_random_patches(tmp_path):
    config = transformers.ViTMAEConfig(**{**VIT, "patch_size": 4}, initializer_range=0.5)  # as large as trained weights
    _, name = save(transformers.ViTMAEModel(config), tmp_path)
    refused(name, "gives another vector whenever it sees the same image")


def test_weights_that_are_not_finite(tmp_path):
    from handful.datasets.base import Item
    from handful.embedders import embed_images

    _, name = vit(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.cls_token"].fill_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HandfulError, match="gives no finite vector for one"):
        embed_images(load_embedder(name, device="cpu"), [Item("one", 0, lambda: images(1)[0])])
