"""What other packages register: found by entry points, imported when asked for, and no danger to anything else."""

from __future__ import annotations

import sys

import pytest

from handful import HandfulError, build_method, methods
from handful import plugins as registry
from handful.cli import app
from handful.datasets import DATASETS, dataset_spec
from handful.embedders import EMBEDDERS, load_embedder
from handful.embedders.backbones import BACKBONES, build_backbone
from handful.methods import METHODS

MODULE = """
import numpy as np
from torch import nn
from handful.datasets.base import DatasetSpec
from handful.datasets import dataset_spec
from handful.methods.pn import PrototypicalNetwork
from dataclasses import replace

class Mine(PrototypicalNetwork):
    title, summary = "Mine", "nearest mean, of another package"

class Flat(nn.Module):
    def __init__(self, channels, image_size):
        super().__init__()
        self.dim = channels * image_size ** 2
        self.feature_shape = (channels, image_size, image_size)

    def forward(self, images):
        return images.flatten(1)

letters = replace(dataset_spec("glyphs"), name="letters")

class Means:
    key, dim, image_size, channels = "", 3, 16, 3

    def __init__(self, rest, device):
        self.name = f"means:{rest}"

    def embed(self, images):
        return images.mean((1, 2)).astype(np.float32)
"""
POINTS = """
[handful.methods]
mine = PLUG:Mine
[handful.datasets]
letters = PLUG:letters
[handful.embedders]
means = PLUG:Means
[handful.backbones]
flat = PLUG:Flat
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution of one module, as far as Python can tell."""

    def put(name: str, points: str, module: str = MODULE) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points.replace("PLUG", name))
        (tmp_path / f"{name}.py").write_text(module)
        monkeypatch.delitem(sys.modules, name, raising=False)
        registry.plugins.cache_clear()
        registry._mention.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield put
    registry.plugins.cache_clear()


def test_one_of_each_kind(install, capsys):
    install("plug_good", POINTS)
    assert "mine" in METHODS and "letters" in DATASETS and "means" in EMBEDDERS and "flat" in BACKBONES
    assert build_method("tac", dim=8, ways=5).title == "TAC"
    assert "plug_good" not in sys.modules, "imported before it was asked for"
    assert build_method("mine", dim=8, ways=5).title == "Mine"
    assert methods()[-1] == "mine"
    assert dataset_spec("letters").summary == dataset_spec("glyphs").summary
    assert load_embedder("means:rgb").name == "means:rgb"
    assert build_backbone("flat", 3, 28).dim == 3 * 28 * 28
    app(["methods"], standalone_mode=False)
    assert "nearest mean, of another package" in capsys.readouterr().out


def test_a_name_that_is_taken_is_an_error_and_the_others_go_on(install):
    install("plug_first", "[handful.methods]\npn = PLUG:Mine\ntwice = PLUG:Mine\n")
    install("plug_second", "[handful.methods]\ntwice = PLUG:Mine\n")
    with pytest.raises(HandfulError, match="the method 'pn' is registered by handful and by plug_first: uninstall"):
        build_method("pn", dim=8, ways=5)
    with pytest.raises(HandfulError, match=r"the method 'twice' is registered by plug_(first|second) and by plug_"):
        build_method("twice", dim=8, ways=5)
    assert build_method("tac", dim=8, ways=5).title == "TAC"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import nothing_that_is_there\n", "ModuleNotFoundError: No module named 'nothing_that_is_there'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("Mine = 7\n", "it is 7, not a subclass of handful.methods.Method"),
        ("\n", "AttributeError"),
    ],
)
def test_a_broken_one_is_a_sentence_that_names_its_distribution(install, capsys, module, reason):
    install("plug_broken", "[handful.methods]\nmine = PLUG:Mine\n", module)
    with pytest.raises(
        HandfulError, match=f"the method 'mine' of the distribution plug_broken fails: {reason}"
    ) as error:
        build_method("mine", dim=8, ways=5)
    assert "\n" not in str(error.value)
    app(["methods"], standalone_mode=False)
    out, errors = capsys.readouterr()
    assert "TACdap" in out and "Mine" not in out
    assert "left out: the method 'mine' of the distribution plug_broken" in errors


def test_a_data_set_must_have_the_name_that_it_is_registered_by(install):
    install("plug_misnamed", "[handful.datasets]\nother = PLUG:letters\n")
    with pytest.raises(HandfulError, match="of the distribution plug_misnamed fails: its name is 'letters'"):
        dataset_spec("other")
