"""Which embedder made vectors: the same under another name and on another machine, and no other."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from handful import HandfulError
from handful.embedders import Precomputed, load_embedder
from handful.embedders.external import Function
from handful.embedders.networks import Network, backbone_in_torch
from handful.embedders.origin import Origin
from handful.embedders.shipped import model_folder


def test_a_model_that_was_moved_or_computes_in_another_type_is_the_same(tmp_path):
    first = load_embedder("run:glyphs", "cpu")
    origin = Origin.of(first)
    assert (origin.name, origin.image_size, origin.channels, origin.dim) == ("run:glyphs", 28, 1, 64)
    shutil.copytree(model_folder("tac-glyphs"), tmp_path / "moved")
    origin.check(load_embedder(f"conv4:{tmp_path / 'moved'}", "cpu"))
    torch_form = backbone_in_torch("run:glyphs", model_folder("tac-glyphs"), "cpu")
    origin.check(torch_form)
    assert torch_form.key != first.key
    half = Network("half", torch_form._network, 28, 1, torch_form._prepare, "cpu", bfloat16=True)
    full = Network("full", torch_form._network, 28, 1, torch_form._prepare, "cpu")
    assert half.key != full.key
    Origin.of(half).check(full)


def test_another_embedder_is_refused(tmp_path):
    glyphs, omniglot = load_embedder("run:glyphs", "cpu"), load_embedder("run:omniglot", "cpu")
    with pytest.raises(HandfulError, match="with vectors of run:glyphs, but run:omniglot now has other weights"):
        Origin.of(glyphs).check(omniglot)
    mine = Function("mine:f", "", lambda images: images.reshape(len(images), -1)[:, :64], image_size=28, channels=1)
    Origin.of(mine).check(glyphs)  # of whose code nothing is known
    with pytest.raises(HandfulError, match="of run:glyphs of 65 dimensions, but run:glyphs gives 64"):
        replace(Origin.of(glyphs), dim=65).check(glyphs)
    with pytest.raises(HandfulError, match="for images of 84 x 84 x 1, but run:glyphs takes 28 x 28 x 1"):
        replace(Origin.of(glyphs), image_size=84).check(glyphs)
    np.save(tmp_path / "v.npy", np.zeros((3, 64), dtype=np.float32))
    with pytest.raises(HandfulError, match=r"was made with vectors of run:glyphs, not of npy:.*v\.npy"):
        Origin.of(glyphs).check(Precomputed(str(tmp_path / "v.npy")))
    Origin.of(Precomputed(str(tmp_path / "v.npy"))).check(Precomputed(str(tmp_path / "v.npy")))
