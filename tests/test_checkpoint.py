"""Checkpoints: whole or not there, and never a way to run code."""

from __future__ import annotations

import os

import pytest
import torch

from tacit import TacitError, checkpoint
from tacit.checkpoint import load_checkpoint, save_checkpoint, write_atomic

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
    monkeypatch.setattr(checkpoint.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
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
    ],
)
def test_damage_is_one_sentence(tmp_path, damage):
    save_checkpoint(tmp_path, "last", TENSORS, {"episode": 3})
    damage(tmp_path)
    with pytest.raises(TacitError) as error:
        load_checkpoint(tmp_path, "last")
    assert "\n" not in str(error.value)
