"""Heads: files that can be trusted, a map that is what it says, a space that is TAC's, and that they help."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from handful import HandfulError, Head, TACClassifier, train_head
from handful import functional as F
from handful.cli import app, main
from handful.estimator.head import load_head
from handful.estimator.head_training import whitening


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
    x, truth = classes(5, seed=1, rows=15)  # too few to learn as much from them
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
    from handful.methods.tapnet import assign_references

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
        with pytest.raises(HandfulError, match="is not a head of 'handful head train', or a damaged one"):
            load_head(path)
    save_file({"map": np.zeros((3, 3), dtype=np.float32)}, path)
    with pytest.raises(HandfulError, match="is not a head"):
        load_head(path)
    about = {"handful-head": json.dumps({"name": "x", "features": 40, "facts": {}})}
    for arrays in (
        {"map": np.zeros((3, 39), dtype=np.float32)},
        {"map": np.full((3, 40), np.nan, dtype=np.float32)},
        {"map": np.zeros((3, 40), dtype=np.float32), "references": np.zeros((5, 40), dtype=np.float32)},
    ):
        save_file(arrays, path, metadata=about)
        with pytest.raises(HandfulError, match="is a damaged head"):
            load_head(path)


ABOUT = {"name": "x", "features": 4, "facts": {}}
EYE = np.eye(4, dtype=np.float32)
BAD_ARRAYS = {
    "NaN": (
        {"map": np.where(EYE > 0, np.nan, EYE)},
        "its map must hold numbers up to 1e\\+06, not all of them 0, got nan",
    ),
    "infinite": ({"map": EYE - np.inf}, "its map must hold numbers up to"),
    "huge": ({"map": EYE * 1e7}, "its map must hold numbers up to 1e\\+06, not all of them 0, got 1e\\+07"),
    "too large for float32": ({"map": EYE.astype(np.float64) * 1e300}, "its map must hold numbers up to"),
    "zeros": ({"map": EYE * 0}, "not all of them 0, got 0"),
    "zero references": ({"references": EYE * 0}, "its references must hold numbers up to"),
    "infinite references": ({"references": EYE - np.inf}, "its references must hold numbers up to"),
    "equal references": ({"references": np.ones((5, 4), dtype=np.float32)}, "its references are all the same"),
    "one axis": ({"map": EYE[0]}, "its map must have rows of 4 numbers each, got shape \\(4,\\)"),
    "three axes": ({"map": EYE[None]}, "its map must have rows of 4 numbers each"),
    "no axis": ({"references": np.array(1, dtype=np.float32)}, "its references must have rows of 4 numbers each"),
    "no rows": ({"map": EYE[:0]}, "its map must have rows of 4 numbers each, got shape \\(0, 4\\)"),
    "no references": ({"references": EYE[:0]}, "its references must have rows of 4 numbers each"),
    "no columns": ({"map": EYE[:, :0]}, "its map must have rows of 4 numbers each"),
    "other columns": ({"map": EYE[:, :3]}, "its map must have rows of 4 numbers each, got shape \\(4, 3\\)"),
    "not of the map": ({"map": EYE[:3], "references": EYE}, "its references must have rows of 3 numbers each"),
    "integers": ({"map": EYE.astype(np.int32)}, "its map must be a NumPy array of floats, got int32"),
    "bools": ({"references": EYE > 0}, "its references must be a NumPy array of floats, got bool"),
    "complex": ({"map": EYE.astype(np.complex64)}, "its map must be a NumPy array of floats, got complex64"),
}


@pytest.mark.parametrize(("arrays", "sentence"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_arrays_that_are_no_head_s(arrays, sentence, tmp_path):
    path = tmp_path / "head.safetensors"
    save_file(arrays, path, metadata={"handful-head": json.dumps(ABOUT)})
    with pytest.raises(HandfulError, match=f"is a damaged head: .*{sentence}") as caught:
        load_head(path)
    assert "\n" not in str(caught.value)
    by_hand = Head("mine", 4, arrays.get("map"), arrays.get("references"))
    with pytest.raises(ValueError, match=f"the head 'mine' cannot be used: .*{sentence}"):
        TACClassifier(by_hand).fit(EYE, [0, 1, 0, 1])
    with pytest.raises(HandfulError, match=f"the head 'mine' cannot be saved: .*{sentence}"):
        by_hand.save(tmp_path / "mine.safetensors")
    assert not (tmp_path / "mine.safetensors").exists()


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (Head(3, 4), "the head 3 cannot be used: its name must be a string, got int"),
        (Head("mine", True), "its features must be a whole number from 1 on, got True"),
        (Head("mine", -4), "its features must be a whole number from 1 on, got -4"),
        (Head("mine", 4.0), "its features must be a whole number from 1 on, got 4.0"),
        (Head("mine", 4, EYE.tolist()), "its map must be a NumPy array of floats, got list"),
        (Head("mine", 4, torch.eye(4)), "its map must be a NumPy array of floats, got torch.float32"),
        (Head("mine", 4, EYE, EYE, ["facts"]), "its facts must be a dict, got list"),
    ],
)
def test_heads_made_by_hand(head, sentence):
    with pytest.raises(ValueError, match=sentence):
        TACClassifier(head).fit(EYE, [0, 1, 0, 1])


@pytest.mark.parametrize(
    "about",
    [
        "[]", "3", "null", '"x"', "{", "", "NaN", "[" * 200_000, '{"a":' * 200_000,
        json.dumps({"name": "x", "features": 4}), json.dumps({"features": 4, "facts": {}}),
        json.dumps({**ABOUT, "name": None}), json.dumps({**ABOUT, "facts": []}), json.dumps({**ABOUT, "facts": None}),
        *(json.dumps({**ABOUT, "features": value}) for value in ("4", 4.5, -4, 0, True, None, [4], 1e999, {"a": 1})),
        '{"name": "x", "facts": {}, "features": ' + "9" * 5000 + "}",
    ],
    ids=lambda about: about[:40],
)  # fmt: skip
def test_words_that_are_no_head_s(about, tmp_path):
    path = tmp_path / "head.safetensors"
    save_file({"map": EYE}, path, metadata={"handful-head": about})
    with pytest.raises(
        HandfulError, match=r"is not a head of 'handful head train', or a damaged one$|a damaged head: its"
    ):
        load_head(path)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_that_numpy_does_not_know(kind, tmp_path):
    path = tmp_path / "head.safetensors"
    save_tensors({"map": torch.eye(4).to(kind)}, path, metadata={"handful-head": json.dumps(ABOUT)})
    with pytest.raises(HandfulError, match=r"is not a head of 'handful head train', or a damaged one$|of floats"):
        load_head(path)


def test_arrays_of_other_names(tmp_path):
    path = tmp_path / "head.safetensors"
    save_file({"Map": EYE}, path, metadata={"handful-head": json.dumps(ABOUT)})
    with pytest.raises(HandfulError, match="is a damaged head: it has an array 'Map', which no head has"):
        load_head(path)


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e-3, 1.0, 1e5])
def test_the_size_of_its_numbers_does_not_count(size, tmp_path):
    x, truth = classes(4, seed=5)
    y = np.where(np.arange(len(x)) % 12 == 0, truth, -1)
    rng = np.random.default_rng(8)
    parts = [rng.normal(size=shape).astype(np.float32) for shape in ((20, 40), (6, 20))]
    plain, other = (Head("x", 40, *(part * np.float32(factor) for part in parts)) for factor in (1, size))
    expected = TACClassifier(plain).fit(x, y).label_distributions_
    np.testing.assert_allclose(TACClassifier(other).fit(x, y).label_distributions_, expected, atol=1e-3)
    other.save(tmp_path / "head.safetensors")
    again = load_head(tmp_path / "head.safetensors")
    np.testing.assert_allclose(TACClassifier(again).fit(x, y).label_distributions_, expected, atol=0.05)


def test_facts_that_json_does_not_know(tmp_path):
    with pytest.raises(HandfulError, match="cannot be saved: its facts must be of JSON's kinds"):
        Head("x", 4, EYE, facts={"seed": np.int64(3)}).save(tmp_path / "head.safetensors")


def test_a_space_in_which_nothing_is_left():
    """As many classes as dimensions: M is a point, and every class would be as near."""
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=(30, 4)), np.arange(30) % 4
    head = Head("flat", 4, None, rng.normal(size=(5, 4)).astype(np.float32))
    with pytest.raises(ValueError, match="the head flat leaves no direction in which these 4 classes differ"):
        TACClassifier(head).fit(x, y)


def test_too_little_to_learn_from():
    x, y = classes(2, seed=7)
    with pytest.raises(HandfulError, match="two classes to learn from and two to judge by"):
        train_head(x, y)
    with pytest.raises(HandfulError, match="vectors \\(rows, features\\) and a label each are needed"):
        train_head(x, y[:-1])
    x, y = classes(4, seed=7)
    for rows, labels, settings, sentence in [
        (x, np.where(y == 0, -1, y), {}, "60 rows have no label"),
        (x, [None, *y[1:].tolist()], {}, "1 rows have no label"),
        (x, [str(y[0]), *y[1:].tolist()], {}, "all strings or all numbers, got both"),
        (np.where(x == x[0, 0], np.nan, x), y, {}, "got NaN or infinity"),
        ([["a"]], [1], {}, "vectors \\(rows, features\\) of numbers are needed"),
        (x, y, {"tasks": 0}, "a head is judged by one task or more"),
        (x, y, {"validation": (x[:, :7], y)}, "have 40 features, those to judge by 7"),
    ]:
        with pytest.raises(HandfulError, match=sentence):
            train_head(rows, labels, **settings)


def test_it_learns_from_directions():
    x, y = classes(10, seed=10, rows=30)
    plain, *others = (
        train_head(np.ldexp(x.astype(np.float64), power), y, episodes=1, tasks=1) for power in (0, -200, 200)
    )
    for other in others:
        assert other.facts == plain.facts
        np.testing.assert_array_equal(other.map, plain.map)


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


def test_a_file_that_is_no_head_is_not_replaced(tmp_path, monkeypatch, capsys):
    out = tmp_path / "mine.safetensors"
    out.write_bytes(b"mine")
    monkeypatch.setattr(sys, "argv", ["handful", "head", "train", "--data", str(tmp_path), "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "exists and is not a head" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
