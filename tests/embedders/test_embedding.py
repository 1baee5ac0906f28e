"""``handful.embed``: raw vectors of a folder, an archive or a list of images."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import handful
from handful import HandfulError, TACClassifier
from handful.embedders import load_embedder


@pytest.fixture
def drawings(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "drawings"
    rng = np.random.default_rng(0)
    for name in ("b/2.png", "a.png", "b/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(folder / name)
    (folder / "c.png").write_bytes(b"no image")
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.array(Image.open(path))[None, :, :, None]


def test_a_folder_an_archive_and_files(drawings, tmp_path):
    vectors, names, broken = handful.embed(drawings, "run:glyphs", device="cpu")
    assert names == ["a.png", "b/1.png", "b/2.png"] and list(broken) == ["c.png"]
    assert vectors.shape == (3, 64) and vectors.dtype == np.float32
    network = load_embedder("run:glyphs", "cpu")
    for vector, name in zip(vectors, names, strict=True):
        np.testing.assert_allclose(vector, network.embed(pixels(drawings / name))[0], rtol=1e-4, atol=1e-5)
    with zipfile.ZipFile(tmp_path / "drawings.zip", "w") as archive:
        for name in (*names, "c.png"):
            archive.write(drawings / name, name)
    packed = handful.embed(str(tmp_path / "drawings.zip"), "run:glyphs", device="cpu")
    assert packed.names == names and list(packed.broken) == ["c.png"]
    np.testing.assert_array_equal(packed.vectors, vectors)
    files = [drawings / "b/2.png", str(drawings / "nowhere.png"), str(drawings / "a.png")]
    chosen = handful.embed(files, "run:glyphs", device="cpu")
    assert chosen.names == [str(files[0]), files[2]] and list(chosen.broken) == [files[1]]
    np.testing.assert_array_equal(chosen.vectors, vectors[[2, 0]])
    assert handful.embed(drawings / "a.png", "run:glyphs", device="cpu").names == [str(drawings / "a.png")]
    drawings.rename(tmp_path / "named.png")  # a folder may have any name
    assert handful.embed(tmp_path / "named.png", "run:glyphs", device="cpu").names == names


def test_nothing_to_embed(tmp_path):
    with pytest.raises(HandfulError, match="there are no images to embed"):
        handful.embed([], "run:glyphs")
    with pytest.raises(HandfulError, match="no such folder or archive"):
        handful.embed(tmp_path / "nowhere", "run:glyphs")
    with pytest.raises(HandfulError, match="holds no images"):
        handful.embed(tmp_path, "run:glyphs")
    with pytest.raises(HandfulError, match="unknown embedder 'magic'"):
        handful.embed(tmp_path / "a.png", "magic")


def test_raw_and_mapped_vectors_are_not_confused():
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    model = TACClassifier().fit(x, np.arange(40) % 2)
    mapped = model.unit_vectors(x)
    assert mapped.shape == (40, 39)
    for ask in (model.predict, model.predict_proba, model.none_score, model.is_none, model.unit_vectors):
        with pytest.raises(ValueError, match=r"X has 39 features, .* expecting 64 .*: these look like unit_vectors"):
            ask(mapped)
    with pytest.raises(ValueError, match="X has 12 features, but TACClassifier is expecting 64 features as input"):
        model.predict(x[:, :12])
