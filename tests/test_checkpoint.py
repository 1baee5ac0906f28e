"""Checkpoints: whole or not there, and never a way to run code."""

from __future__ import annotations

import json
import os

import pytest
import torch

from handful import HandfulError
from handful.checkpoint import checksum, load_checkpoint, save_checkpoint
from handful.io import read_json, read_object, write_atomic

TENSORS = {"model.a": torch.randn(3, 4), "model.count": torch.tensor(7)}


def test_round_trip(tmp_path):
    save_checkpoint(tmp_path, "last", TENSORS, {"episode": 3})
    tensors, state = load_checkpoint(tmp_path, "last")
    assert state == {"episode": 3}
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())


def test_only_the_newest_tensors_stay(tmp_path):
    for episode in range(3):
        save_checkpoint(tmp_path, "last", {"x": torch.tensor(episode)}, {})
    save_checkpoint(tmp_path, "best", {"x": torch.tensor(0)}, {})
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert load_checkpoint(tmp_path, "last")[0]["x"] == 2


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_kill_at_any_step_leaves_a_whole_checkpoint(tmp_path, monkeypatch, step):
    """The process dies at the flush or the rename of the tensors, then of the JSON."""
    save_checkpoint(tmp_path, "last", {"x": torch.tensor(1)}, {"episode": 1})
    calls = 0

    def dying(real):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == step:
                raise KeyboardInterrupt
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, "last", {"x": torch.tensor(2)}, {"episode": 2})
    monkeypatch.undo()
    tensors, state = load_checkpoint(tmp_path, "last")
    assert tensors["x"] == state["episode"]


def test_no_temporary_file_stays_after_a_failed_write(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomic(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def break_bytes(path, position=100):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: break_bytes(next(folder.glob("*.safetensors"))),
        lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"short"),
        lambda folder: next(folder.glob("*.safetensors")).unlink(),
        lambda folder: (folder / "last.json").write_text("{"),
        lambda folder: (folder / "last.json").write_text("[]"),
        lambda folder: (folder / "last.json").write_text('{"tensors": "../../etc/passwd", "sha256": "", "state": {}}'),
        lambda folder: (folder / "last.json").write_text((folder / "last.json").read_text().replace("3", "4")),
        lambda folder: (folder / "last.json").unlink(),
        lambda folder: (folder / "last.json").write_text('{"tensors": "a\\u0000b", "sha256": "", "state": {}}'),
        lambda folder: (folder / "last.json").write_text("[" * 100_000),
    ],
)
def test_damage_is_one_sentence(tmp_path, damage):
    save_checkpoint(tmp_path, "last", TENSORS, {"episode": 3})
    damage(tmp_path)
    with pytest.raises(HandfulError) as error:
        load_checkpoint(tmp_path, "last")
    assert "\n" not in str(error.value)


def test_a_checkpoint_whose_state_is_no_object_is_damaged(tmp_path):
    save_checkpoint(tmp_path, "last", TENSORS, [])
    with pytest.raises(HandfulError, match="its state is not an object"):
        load_checkpoint(tmp_path, "last")


@pytest.mark.parametrize("head", ["{}", "[]", '{"sha256": 7}', '{"sha256": null}'])
def test_a_checksum_is_a_text(tmp_path, head):
    (tmp_path / "last.json").write_text(head)
    with pytest.raises(HandfulError, match="is damaged"):
        checksum(tmp_path, "last")


def test_files_of_others_beside_a_checkpoint_stay(tmp_path):
    """Old tensors are recognised by the twelve digits of their checksum, not by how their names begin."""
    for name in (
        "best-of-all.safetensors",
        "best-.safetensors",
        "best-0123456789ABC.safetensors",
        "bestof.safetensors",
    ):
        (tmp_path / name).write_text("mine")
    (tmp_path / "best-0123456789ab.safetensors").mkdir()
    before = set(tmp_path.iterdir())
    for episode in range(2):
        save_checkpoint(tmp_path, "best", {"x": torch.tensor(episode)}, {})
    after = set(tmp_path.iterdir())
    assert before < after
    assert len(after - before) == 2, "the checkpoint itself: JSON and tensors"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 40 + "]" * 40,  # Python can read it, and would fail later
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5000 + "}",
        '"\\ud800',
        "",
    ],
)
def test_what_is_no_json_of_ours_is_one_sentence(tmp_path, text):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(HandfulError, match="the file is damaged") as error:
        read_json(tmp_path / "file.json")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_bytes_that_are_no_text_are_damage(tmp_path):
    (tmp_path / "file.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(HandfulError, match="the file is damaged"):
        read_json(tmp_path / "file.json")


def test_sound_json_is_read_as_it_is(tmp_path):
    content = {"a": [1, -2.5e-7, None, True, {"b": {"c": [[["deep"]]]}}], "big": 10**20}
    (tmp_path / "file.json").write_text(json.dumps(content))
    assert read_object(tmp_path / "file.json") == content


@pytest.mark.parametrize("text", ["[]", "7", "null", '"text"'])
def test_an_object_is_an_object(tmp_path, text):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(HandfulError, match="is not a JSON object: the file is damaged"):
        read_object(tmp_path / "file.json")
