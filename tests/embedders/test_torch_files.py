"""Weights in PyTorch's files, read as arrays: the same numbers, and nothing in a file is executed."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from handful import HandfulError
from handful.embedders.torch_files import load_weights


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("bomb-went-off"),)


def tensors() -> OrderedDict[str, torch.Tensor]:
    torch.manual_seed(0)
    whole = torch.randn(4, 3, 2, 2)
    return OrderedDict(
        plain=whole,
        part=whole[1:3],  # of the same storage
        turned=torch.randn(5, 7).T,
        counted=torch.tensor(12),
        half=torch.randn(3).half(),
        double=torch.randn(2, 2).double(),
    )


@pytest.fixture(params=[False, True], ids=["pickles", "zip"])
def file(request, tmp_path) -> Path:
    path = tmp_path / "weights.pth"
    torch.save(tensors(), path, _use_new_zipfile_serialization=request.param)
    return path


def test_the_same_numbers_as_pytorch_reads(file):
    expected, found = tensors(), load_weights(file)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy())
        assert found[name].dtype == value.numpy().dtype


def test_state_of_a_module_and_parameters(tmp_path):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    torch.save(network.state_dict(), tmp_path / "state.pth")
    found = load_weights(tmp_path / "state.pth")
    assert {name: value.tolist() for name, value in network.state_dict().items()} == {
        name: value.tolist() for name, value in found.items()
    }


@pytest.mark.parametrize("new", [False, True])
def test_nothing_is_executed(tmp_path, monkeypatch, new):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(2), "b": Bomb()}, tmp_path / "bomb.pth", _use_new_zipfile_serialization=new)
    with pytest.raises(HandfulError, match="is refused: it holds"):
        load_weights(tmp_path / "bomb.pth")
    assert not Path("bomb-went-off").exists()


def test_a_file_that_is_cut_off_anywhere_is_one_sentence(file):
    content = file.read_bytes()
    places = sorted({*range(0, len(content), max(1, len(content) // 60)), len(content) - 1})
    for place in places:
        file.write_bytes(content[:place])
        with pytest.raises(HandfulError):
            load_weights(file)


def test_flipped_bytes_are_an_error_or_other_numbers(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 0x55
        path.write_bytes(changed)
        try:
            found = load_weights(path)
        except HandfulError:
            continue
        assert all(isinstance(value, np.ndarray) for value in found.values())


def test_other_content_is_named(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with pytest.raises(HandfulError, match="something else than a dict of tensors"):
        load_weights(tmp_path / "list.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"a": 1}) * 5)
    with pytest.raises(HandfulError, match="does not begin as such files do"):
        load_weights(tmp_path / "plain.pth")
    with pytest.raises(HandfulError, match="cannot read"):
        load_weights(tmp_path / "nothing.pth")


def test_a_member_that_swells_is_refused(tmp_path):
    """The zip says that a storage has two elements, and holds a gigabyte of zeros in a few kilobytes."""
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(2)}, path)
    swollen = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(swollen, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(1 << 24) if "/data/" in name else old.read(name))
    path.write_bytes(swollen.getvalue())
    with pytest.raises(HandfulError, match="longer than it should be"):
        load_weights(path)
