"""Heads: files that can be trusted, a map that is what it says, a space that is TAC's, and that they help."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tacit import Head, TACClassifier, TacitError, train_head
from tacit import functional as F
from tacit.cli import app
from tacit.heads import load_head
from tacit.heads.train import whitening


def classes(count: int, seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Classes that differ in the first 12 of 40 directions; images differ most in the others, which say nothing."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(count), rows)
    x = np.concatenate([rng.normal(size=(count, 12))[truth], np.zeros((len(truth), 28))], axis=1)
    x += rng.normal(size=x.shape) * np.r_[np.full(12, 0.5), np.full(28, 1.2)]
    return (x + 2).astype(np.float32), truth


@pytest.fixture(scope="module")
def head() -> Head:
    return train_head(*classes(30, seed=0), episodes=40, tasks=4, name="test")


def test_a_head_helps_on_classes_it_never_saw(head):
    x, truth = classes(5, seed=1)
    gains = []
    for draw in range(5):
        rng = np.random.default_rng(draw)
        y = np.full(len(x), -1)
        for label in range(5):
            y[rng.choice(np.flatnonzero(truth == label))] = label
        with_head, without = (TACClassifier(h).fit(x, y).transduction_ == truth for h in (head, None))
        gains.append(with_head.mean() - without.mean())
    assert np.mean(gains) > 0.1
    assert head.facts["chosen"] in head.facts["tried"] and len(head.facts["tried"]) == 7


def test_the_map_makes_what_differs_within_classes_even():
    x, labels = classes(20, seed=2, rows=200)
    mapping = whitening(x, labels, shrinkage=1e-4)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    unit = unit - unit.mean(0)
    unit = (unit / np.linalg.norm(unit, axis=1, keepdims=True)) @ mapping.T
    within = unit - np.stack([unit[labels == label].mean(0) for label in range(20)])[labels]
    values = np.linalg.eigvalsh(within.T @ within)
    assert values.max() / values.min() < 1.01
    np.testing.assert_allclose(mapping, mapping.T, atol=1e-6)


def test_a_file_keeps_it(head, tmp_path):
    head.save(tmp_path / "head.safetensors")
    again = load_head(tmp_path / "head.safetensors")
    assert (again.name, again.features, again.facts) == (head.name, head.features, head.facts)
    np.testing.assert_allclose(again.map, head.map, atol=1e-3)
    x, truth = classes(5, seed=3)
    y = np.where(np.arange(len(x)) % 20 == 0, truth, -1)
    same = TACClassifier(str(tmp_path / "head.safetensors")).fit(x, y).transduction_
    assert (same == TACClassifier(head).fit(x, y).transduction_).mean() > 0.99


def test_the_space_of_references_is_tac_s():
    """Cosines in M with the class means in M, by an explicit projection."""
    rng = np.random.default_rng(4)
    x, truth = classes(4, seed=5)
    references = rng.normal(size=(6, 40)).astype(np.float32)
    y = np.where(np.arange(len(x)) % 12 == 0, truth, -1)
    model = TACClassifier(Head("test", 40, None, references), iterations=0, scale=3.0).fit(x, y)
    unit = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).double()
    means = torch.stack([unit[torch.from_numpy(y == label)].sum(0) for label in range(4)])
    from tacit.methods.tapnet import assign_references

    every = torch.from_numpy(references).double()
    errors = F.error_vectors(means, every[assign_references(means, every)])
    null = torch.linalg.svd(errors).Vh[4:].T  # (D, D - 4)
    points, targets = (torch.nn.functional.normalize(part @ null, dim=-1) for part in (unit, means))
    expected = torch.softmax(3.0 * points @ targets.T, dim=-1)
    np.testing.assert_allclose(model.predict_proba(x), expected.numpy(), atol=1e-4)


def test_too_many_classes_for_its_references():
    x, truth = classes(4, seed=6)
    with pytest.raises(ValueError, match="tells at most 3 classes apart, got 4 classes"):
        TACClassifier(Head("small", 40, None, np.eye(3, 40, dtype=np.float32))).fit(x, truth)
    with pytest.raises(ValueError, match="is for embeddings of 12 features, but X has 40 features"):
        TACClassifier(Head("other", 12)).fit(x, truth)


def test_files_that_are_no_heads(head, tmp_path):
    path = tmp_path / "head.safetensors"
    for content in (b"", b"nonsense", b"\x80\x04\x95"):
        path.write_bytes(content)
        with pytest.raises(TacitError, match="is not a head of 'tacit head train', or a damaged one"):
            load_head(path)
    save_file({"map": np.zeros((3, 3), dtype=np.float32)}, path)
    with pytest.raises(TacitError, match="is not a head"):
        load_head(path)
    about = {"tacit-head": json.dumps({"name": "x", "features": 40, "facts": {}})}
    for arrays in (
        {"map": np.zeros((3, 39), dtype=np.float32)},
        {"map": np.full((3, 40), np.nan, dtype=np.float32)},
        {"map": np.zeros((3, 40), dtype=np.float32), "references": np.zeros((5, 40), dtype=np.float32)},
    ):
        save_file(arrays, path, metadata=about)
        with pytest.raises(TacitError, match="is a damaged head"):
            load_head(path)


def test_too_little_to_learn_from():
    x, y = classes(2, seed=7)
    with pytest.raises(TacitError, match="two classes to learn from and two to judge by"):
        train_head(x, y)
    with pytest.raises(TacitError, match="vectors \\(rows, features\\) and a label each are needed"):
        train_head(x, y[:-1])


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    words = ["head", "train", "--embedder", "conv4:glyphs", "--dataset", "glyphs", "--episodes", "30", "--tasks", "2",
             "--out", str(tmp_path / "glyphs.safetensors"), "--device", "cpu"]  # fmt: skip
    app(words, standalone_mode=False)
    out = capsys.readouterr().out
    for line in ("no map", "shrinkage 3", "the embedder's own references", "30 episodes of TAC", "Chosen: "):
        assert line in out
    found = load_head(tmp_path / "glyphs.safetensors")
    assert found.features == 64 and found.facts["dataset"] == "glyphs"
