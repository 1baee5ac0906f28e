"""A fitted classifier in a file: it answers as before, nothing is forgotten, and nothing wrong is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from sklearn.exceptions import NotFittedError

from handful import HandfulError, Head, TACClassifier
from handful.embedders.origin import Origin
from handful.estimator.saved import NUMBERS, UNIT, Fitted, built, checksum, flattened

KEY = "handful-classifier"
DAMAGED = "is a damaged model|or a damaged one"


def rows(kind: str = "float32", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four classes in 40 dimensions, 50 rows each, far from zero."""
    rng = np.random.default_rng(seed)
    truth = np.arange(200) % 4
    centres = np.random.default_rng(9).normal(size=(4, 40))
    return (centres[truth] + rng.normal(size=(200, 40)) + 1).astype(kind), truth


def fitted(kind: str = "float32", head: Head | None = None, **settings) -> TACClassifier:
    x, truth = rows(kind)
    y = np.where(np.arange(200) < 24, truth, -1)
    return TACClassifier(head, **settings).fit(x, y, none=np.arange(200) >= 197)


def poor(head: Head | None = None) -> TACClassifier:
    """A model of one large and three small classes that do not cluster: it uses a logistic regression too."""
    x, truth = rows()
    x += 2 * np.random.default_rng(5).normal(size=x.shape).astype(x.dtype)
    kept = (truth == 0) | (np.arange(200) < 60)
    y = np.where(np.arange(200) < 40, truth, -1)
    model = TACClassifier(head).fit(x[kept], y[kept], none=np.arange(kept.sum()) >= kept.sum() - 3)
    assert model._model.doubt > 0
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    fitted().save(path)
    return path


def content(path: Path) -> tuple[dict[str, np.ndarray], dict]:
    with safe_open(path, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, json.loads(opened.metadata()[KEY])["words"]  # noqa: SIM118


def write(path: Path, arrays: dict[str, np.ndarray], words: dict) -> None:
    """A file whose checksum is right, whatever it holds."""
    text = json.dumps({"sha256": checksum(arrays, words), "words": words})
    save_file(arrays, path, metadata={KEY: text})


def answers(model: TACClassifier, x: np.ndarray) -> list[np.ndarray]:
    names = ("predict", "predict_proba", "none_score", "is_none", "unit_vectors")
    return [getattr(model, name)(x) for name in names]


MAP = np.random.default_rng(1).normal(size=(30, 40)).astype(np.float32)
REFERENCES = np.random.default_rng(2).normal(size=(6, 40)).astype(np.float32)
MODELS = {
    "float32": lambda: fitted(),
    "float64": lambda: fitted("float64"),
    "never none": lambda: fitted(distractors=False),
    "no refinements": lambda: fitted(iterations=0, scale=3.0, distractors=True),
    "poor clusters": lambda: poor(),
    "a map": lambda: fitted(head=Head("map", 40, MAP)),
    "references": lambda: fitted(head=Head("references", 40, None, REFERENCES)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_loaded_model_answers_bit_for_bit(make, tmp_path):
    model = make()
    model.save(tmp_path / "model.safetensors")
    again = TACClassifier.load(tmp_path / "model.safetensors")
    new, _ = rows(str(model._kind), seed=5)
    old, _ = rows(str(model._kind))
    blank = np.zeros((1, 40), dtype=new.dtype)
    for x in (new, old, new[:1], np.concatenate([blank, new[:5]])):
        for first, second in zip(answers(model, x), answers(again, x), strict=True):
            assert first.dtype == second.dtype
            np.testing.assert_array_equal(first, second)
    for name in ("none_threshold_", "none_share_", "expected_accuracy_", "expected_accuracy_interval_", "n_iter_"):
        assert getattr(again, name) == getattr(model, name), name
    np.testing.assert_array_equal(again.class_shares_, model.class_shares_)
    assert again.n_features_in_ == 40 and again.embedder_ is None


def test_a_model_is_small_and_saved_again_is_the_same(file, tmp_path):
    TACClassifier.load(file).save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()
    assert file.stat().st_size < 200_000


def leaves(kind: type, prefix: str = "", seen: tuple[type, ...] = ()) -> set[str]:
    """The path of each field of a dataclass and of those in it, from its types alone."""
    found, hints = set(), get_type_hints(kind)
    for field in fields(kind):
        options = [one for one in (hints[field.name], *get_args(hints[field.name])) if is_dataclass(one)]
        if not options:
            found.add(prefix + field.name)
        elif options[0] not in seen:
            seen = (*seen, options[0])
            found |= leaves(options[0], f"{prefix}{field.name}.", seen)
    return found


@dataclass(frozen=True)
class Inner:
    count: int
    sure: bool
    share: float
    row: np.ndarray | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    same: Inner
    missing: Inner2 | None
    limit: int | None = None


@dataclass(frozen=True)
class Inner2:
    share: float


def test_fields_of_every_kind_come_back_as_they_were():
    inner = Inner(3, True, 0.25)
    whole = Outer(inner, inner, None, 7)
    flat = dict(flattened(whole))
    assert flat == {"inner.count": 3, "inner.sure": 1, "inner.share": 0.25, "limit": 7}
    again = built(Outer, flat, "", {})
    assert again == whole and type(again.inner.count) is int and again.inner.sure is True and again.same is again.inner
    with pytest.raises(TypeError, match="same is a second Inner: only one can be saved"):
        dict(flattened(Outer(inner, Inner(4, True, 0.25), None)))
    with pytest.raises(TypeError, match="share is of a kind that is not saved: str"):
        dict(flattened(Inner2("much")))


def test_every_field_is_saved():
    """A field that a part of the model gets later must be saved as well: give it a line in NUMBERS."""
    assert leaves(Fitted) == set(NUMBERS)
    everything = {"_projection.axes", "_projection.frame.map", "_model.regression.support"}
    model = poor(Head("map", 40, MAP))
    saved = dict(flattened(Fitted(**{field.name: getattr(model, field.name) for field in fields(Fitted)})))
    assert set(saved) == set(NUMBERS) >= everything


@pytest.mark.parametrize(
    "names",
    [
        ["ant", "bee", "cat", "Ünïcode \N{SNOWMAN}"], [b"ant", b"bee", b"c\xe9", b"d"], [3, 5, 7, 9],
        [2**60, 2**60 + 1, 5, 6], [True, False], [1.0, 2.0, 3.0, 4.0], ["caf\udce9", "b", "c", "d"],
    ],
)  # fmt: skip
def test_labels_of_every_kind(names, tmp_path):
    x, truth = rows()
    y = np.empty(200, dtype=object)
    y[:] = [names[label % len(names)] if row < 40 else None for row, label in enumerate(truth)]
    model = TACClassifier().fit(x, y)
    model.save(tmp_path / "model")
    again = TACClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.classes_.dtype.kind == model.classes_.dtype.kind
    assert again.predict(x).tolist() == model.predict(x).tolist()


def test_names_of_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, truth = rows()
    frame = pandas.DataFrame(x, columns=[f"f{number}" for number in range(40)])
    TACClassifier().fit(frame, truth).save(tmp_path / "model")
    again = TACClassifier.load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == list(frame.columns)


def test_what_a_loaded_model_cannot_do(file):
    model = TACClassifier.load(file)
    x, truth = rows()
    for again in (lambda: model.refit(truth), model.check):
        with pytest.raises(NotFittedError, match="was loaded from a file, without the rows of fit: call fit"):
            again()
    assert not hasattr(model, "transduction_")
    assert (model.fit(x, truth).transduction_ == truth).all()
    with pytest.raises(NotFittedError):
        TACClassifier().save(file.parent / "nothing")
    assert not (file.parent / "nothing").exists()


def test_the_embedder_is_kept_until_the_next_fit(tmp_path):
    model = fitted()
    model.embedder_ = Origin("onnx:a.onnx", "abc", 224, 3, 40)
    model.save(tmp_path / "model")
    again = TACClassifier.load(tmp_path / "model")
    assert again.embedder_ == model.embedder_
    assert again.fit(*rows()).embedder_ is None


def test_files_that_are_no_models(file, tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(HandfulError, match="there is no model at"):
        TACClassifier.load(path)
    with pytest.raises(HandfulError, match="there is no model at"):
        TACClassifier.load(tmp_path)
    whole = file.read_bytes()
    for part in (b"", b"nonsense", b"\x80\x04\x95", whole[:7], whole[:500], whole[:-1], whole + b"x"):
        path.write_bytes(part)
        with pytest.raises(HandfulError, match=r"or a damaged one$") as caught:
            TACClassifier.load(path)
        assert "\n" not in str(caught.value)
    Head("other", 40, MAP).save(path)
    with pytest.raises(HandfulError, match=r"or a damaged one$"):
        TACClassifier.load(path)


BAD_ARRAYS = {
    "NaN": ("_model.means", lambda a: a * np.nan, "should hold numbers from -1.01 to 1.01"),
    "infinite": ("_projection.anchors", lambda a: a + np.inf, "should hold numbers from -1e\\+06"),
    "huge": ("_projection.anchors", lambda a: a + 1e7, "should hold numbers from -1e\\+06 to 1e\\+06"),
    "too long": ("_model.regression.support", lambda a: a * 2, "should hold numbers from -1.01 to 1.01"),
    "negative walks": ("_judge.met", lambda a: a - 1, "should hold numbers from 0"),
    "no spread": ("_judge.spreads", lambda a: a * 0, "should hold numbers from 1e-10"),
    "integers": ("_model.map", lambda a: a.astype(np.int32), "should be float32 or float64 with 2 axes"),
    "halves": ("_model.means", lambda a: a.astype(np.float16), "should be float32 or float64 with 2 axes"),
    "one axis": ("_model.map", lambda a: a[0], "with 2 axes"),
    "a class too many": ("_model.means", lambda a: np.concatenate([a, a[:1]]), "should be of shape \\(4, 40\\)"),
    "a column less": ("_model.map", lambda a: a[:, 1:].copy(), "should be of shape"),
    "an anchor less": ("_judge.met", lambda a: a[1:], "should be of shape"),
    "no grid": ("_judge.scores", lambda a: a[:0], "should be of shape"),
    "backwards": ("_judge.scores", lambda a: a[::-1].copy(), "should be sorted"),
    "features": ("_projection.frame.centre", lambda a: a[:-1], "should be of shape"),
}


@pytest.mark.parametrize(("name", "change", "sentence"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_arrays_that_are_no_model_s(name, change, sentence, file, tmp_path):
    arrays, words = content(file)
    path = tmp_path / "model.safetensors"
    write(path, {**arrays, name: change(arrays[name])}, words)
    with pytest.raises(HandfulError, match=f"is a damaged model: .*{sentence}") as caught:
        TACClassifier.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", ["least", "most"])
def test_whatever_is_accepted_gives_probabilities(side, file, tmp_path):
    """A forged file may say anything within the ranges; answers are still finite and from 0 to 1."""
    arrays, words = content(file)
    x, _ = rows(seed=5)
    for name, (shape, least, most) in NUMBERS.items():
        value = least if side == "least" else most
        if not shape:
            write(tmp_path / "model", arrays, {**words, "numbers": {**words["numbers"], name: value}})
        elif name in arrays:
            long = np.full_like(arrays[name], value)
            if least == -UNIT:
                long /= np.maximum(np.linalg.norm(long, axis=-1, keepdims=True), 1)
            write(tmp_path / "model", {**arrays, name: long}, words)
        else:
            continue
        with np.errstate(all="ignore"):
            model = TACClassifier.load(tmp_path / "model")
            chances, scores = model.predict_proba(x), model.none_score(x)
        assert np.isfinite(chances).all() and np.isfinite(scores).all(), name
        assert scores.min() >= 0 and scores.max() <= 1, name


def test_arrays_that_are_missing_or_too_many(file, tmp_path):
    arrays, words = content(file)
    path = tmp_path / "model.safetensors"
    optional = ("_projection.frame.map", "_projection.axes")
    for name in arrays:
        write(path, {key: value for key, value in arrays.items() if key != name}, words)
        if name not in optional:
            with pytest.raises(HandfulError, match=DAMAGED):
                TACClassifier.load(path)
    write(path, {**arrays, "other": np.zeros(3)}, words)
    with pytest.raises(HandfulError, match="it has an array 'other', which no model has"):
        TACClassifier.load(path)


BAD_WORDS = [
    {"format": 2}, {"format": None}, {"numbers": {}}, {"numbers": []}, {"numbers": None}, {"columns_first": ["x"]},
    {"columns_first": ["_temperature"]}, {"columns_first": 3}, {"settings": {"iterations": -1}}, {"settings": []},
    {"settings": {"other": 1}}, {"settings": {"head__x": 1}}, {"settings": {"scale": "x"}}, {"kind": "float16"},
    {"kind": 3}, {"refinements": -1}, {"refinements": True}, {"interval": [0, 2]}, {"interval": [0.1]},
    {"interval": 3}, {"interval": ["a", "b"]}, {"feature_names": 3}, {"feature_names": [3]}, {"classes": {}},
    {"classes": {"type": "<i8", "values": [0, 1, 2]}}, {"classes": {"type": "<i8", "values": [0, 1, 2, 2]}},
    {"classes": {"type": "<i8", "values": [0, 1, 2, "3"]}}, {"classes": {"type": "V99999999999", "values": [0, 1]}},
    {"classes": {"type": "<i1", "values": [0, 1, 2, 10**30]}}, {"classes": {"type": "S", "values": ["a", "\u2603"]}},
    {"embedder": {}}, {"embedder": 3},
    {"embedder": {"name": 3, "weights": "", "image_size": 1, "channels": 3, "dim": 40}},
    {"embedder": {"name": "x", "weights": "", "image_size": 10**9, "channels": 3, "dim": 40}},
    {"embedder": {"name": "x", "weights": "", "image_size": 224, "channels": 3, "dim": 41}},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD_WORDS, ids=lambda change: json.dumps(change)[:50])
def test_words_that_are_no_model_s(change, file, tmp_path):
    arrays, words = content(file)
    path = tmp_path / "model.safetensors"
    write(path, arrays, {**words, **change})
    with pytest.raises(HandfulError, match=f"{DAMAGED}|another version of handful") as caught:
        TACClassifier.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", "{", "", "{}", '{"words": {}}', "[" * 200_000, '{"a":' * 200_000], ids=lambda t: t[:9]
)
def test_headers_that_are_no_model_s(text, file, tmp_path):
    arrays, _ = content(file)
    save_file(arrays, tmp_path / "model", metadata={KEY: text})
    with pytest.raises(HandfulError, match=r"or a damaged one$"):
        TACClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 10**400, "x", None, [], "nan"], ids=str)
def test_numbers_that_are_no_model_s(value, file, tmp_path):
    arrays, words = content(file)
    for name in words["numbers"]:
        write(tmp_path / "model", arrays, {**words, "numbers": {**words["numbers"], name: value}})
        with pytest.raises(HandfulError, match=DAMAGED):
            TACClassifier.load(tmp_path / "model")


def test_numbers_that_numpy_does_not_know(file, tmp_path):
    arrays, words = content(file)
    tensors = {name: torch.from_numpy(value).to(torch.bfloat16) for name, value in arrays.items()}
    save_tensors(tensors, tmp_path / "model", metadata={KEY: json.dumps(words)})
    with pytest.raises(HandfulError, match=DAMAGED):
        TACClassifier.load(tmp_path / "model")


def test_a_flipped_bit_is_noticed(file, tmp_path):
    whole, path = file.read_bytes(), tmp_path / "model"
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        with pytest.raises(HandfulError, match=f"{DAMAGED}|another version of handful"):
            TACClassifier.load(path)


def test_a_model_that_cannot_be_saved_leaves_the_old_one(file, tmp_path):
    path, model = tmp_path / "model", fitted()
    model.save(path)
    before = path.read_bytes()
    model._temperature = float("nan")
    with pytest.raises(HandfulError, match="the model cannot be saved: '_temperature' should hold numbers from"):
        model.save(path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["model"]


def test_rows_of_which_little_can_be_said(tmp_path):
    """Few rows, a row without a direction; and rows that are all alike, of which nothing can be said."""
    for x in (np.eye(2), np.array([[1.0, 2], [2, 1], [0, 0]]), np.eye(3).repeat(3, 0)):
        model = TACClassifier(distractors=True).fit(x, [0, *[-1] * (len(x) - 2), 1])
        model.save(tmp_path / "model")
        again = TACClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
        np.testing.assert_array_equal(again.none_score(x), model.none_score(x))
    with pytest.raises(HandfulError, match="it was fitted to rows that are all alike, and tells nothing apart"):
        TACClassifier().fit(np.ones((6, 3)), [0, 1, -1, -1, -1, -1]).save(tmp_path / "model")
