"""The reader of pickles: all that data sets hold comes out as Python's own reader gives it, and nothing runs."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handful.datasets.pickles import load_pickle, text, text_keys
from handful.errors import HandfulError

IMAGES = np.arange(2 * 3 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 3)
CONTENTS: dict[str, Any] = {
    "a data set": {"image_data": IMAGES, "class_dict": {"n01": [0], "n02": [1]}},
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "default": collections.defaultdict(list, {"x": [1]}),
    "numbers": [0, -1, 255, 65536, -(2**31), 2**40, -(2**100), 1.5, float("inf"), None, True, False],
    "texts": ["", "über", "a\nb'c\\d\u2028", "x" * 3000],
    "bytes": [b"", b"\x00\xff", b"z" * 3000],
    "arrays": [
        np.arange(5, dtype=">i4"),
        np.asfortranarray(IMAGES),
        np.array(5),
        np.empty((0, 3)),
        np.array(["a", "b"]),
    ],
    "scalars": [np.int64(3), np.float32(1.5), np.bool_(True)],
    "objects": np.array([b"xx", np.arange(3), "text"], dtype=object),
    "shared": [IMAGES, IMAGES, (1, (2, (3,)), 4, 5)],
}


def plain(value: Any) -> Any:
    """The same with arrays and views as comparable things."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, [plain(entry) for entry in value.ravel().tolist()]
    if isinstance(value, memoryview | bytes):
        return bytes(value)
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(entry) for entry in value)
    return value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_plain_things_come_out_as_they_went_in(tmp_path, content, protocol):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    assert plain(load_pickle(path)) == plain(content)


def test_python_2(tmp_path):
    """What Python 2.7 and numpy 1.11 wrote for {'image_data': <2 x 3 uint8>, 'class_dict': {'n01': [0, 1]}}."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08"
        b"(K\x01K\x02K\x03\x86q\tcnumpy\ndtype\nq\nU\x02u1q\x0bK\x00K\x01\x87q\x0cRq\r"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x02\xfd\xfe\xfftb"
    )
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x02}q\x01(U\nimage_data" + array + b"U\nclass_dict}U\x03n01]q\x0e(K\x00K\x01esu.")
    content = text_keys(load_pickle(path))
    assert content["image_data"].tolist() == [[0, 1, 2], [253, 254, 255]]
    assert {text(name): rows for name, rows in content["class_dict"].items()} == {"n01": [0, 1]}


class Malicious:
    """Creates a file when Python's own reader reads it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(("call", "name"), [(os.system, "system"), (eval, "eval"), (os.mkdir, "mkdir"), (open, "open")])
def test_nothing_runs_and_what_was_asked_for_is_named(tmp_path, call, name, protocol):
    canary = tmp_path / "canary"
    arguments = {"system": f"touch {canary}", "eval": f"open({str(canary)!r}, 'w')", "mkdir": str(canary)}
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps([IMAGES, Malicious(call, arguments.get(name, str(canary)))], protocol))
    with pytest.raises(HandfulError, match=rf"is refused: it holds '\w+\.{name}'"):
        load_pickle(path)
    assert not canary.exists()


@pytest.mark.parametrize("content", [Path("x"), {1, 2}, collections.Counter("ab"), np.dtype([("a", "i4")]), 3 + 4j])
def test_other_objects_are_refused(tmp_path, content):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(HandfulError, match="is refused"):
        load_pickle(path)


@pytest.mark.parametrize("content", [
    b"", b"\x80", b"hello", b"\x80\x02.", b"\x80\x02]", b"(((((", b"\x80\x04\x8e" + b"\xff" * 8, b"h\x05.", b"]K\x01s.",
    b"\x80\x02Nr\xff\xff\xff\xff.", b"}]K\x01s.", b"\x8b\xff\xff\xff\x7f1", b"(" * 1000 + b"t" * 1000 + b".",
])  # fmt: skip
def test_damage_is_one_sentence(tmp_path, content):
    path = tmp_path / "x.pkl"
    path.write_bytes(content)
    try:
        load_pickle(path)
    except HandfulError as error:
        assert "\n" not in str(error) and str(path) in str(error)


def test_a_large_pickle_needs_no_memory(tmp_path):
    """Images stay in the file: they are views of it, not copies."""
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps([np.zeros(5000, np.uint8), b"z" * 5000]))
    array, content = load_pickle(path)
    assert isinstance(content, memoryview) and not array.flags.owndata
