"""A studio of small pictures of four colours, with vectors that take no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from studio_client import COLOURS, COUNT, Client, client_of, picture

from handful.embedders import load_embedder
from handful.studio.desk import Desk


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def album(tmp_path, own_cache) -> Path:
    """40 pictures of four colours in turn, named by their number."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(COUNT):
        colour = list(COLOURS.values())[number % 4]
        (folder / f"{number:02}.jpg").write_bytes(picture(colour, number))
    return folder


@pytest.fixture
def vectors(tmp_path) -> str:
    """An embedder for them: vectors from a file, for names that are added later as well."""
    rng = np.random.default_rng(0)
    names = [f"{number:02}.jpg" for number in range(2 * COUNT)]
    values = 3 * np.eye(4, 8)[np.arange(2 * COUNT) % 4] + rng.normal(scale=0.3, size=(2 * COUNT, 8))
    np.savez(tmp_path / "vectors.npz", paths=names, vectors=values.astype(np.float32))
    return f"npy:{tmp_path / 'vectors.npz'}"


@pytest.fixture
def open_desk(album, vectors, tmp_path) -> Iterator[Callable[..., Desk]]:
    """Opens studios of the pictures in one folder, one at a time."""
    opened: list[Desk] = []

    def again(**options) -> Desk:
        close()
        labels, embedder = options.pop("labels", None), options.pop("embedder", None) or load_embedder(vectors)
        settings = {"distractors": False, **options}
        desk = Desk(album, tmp_path / "out", embedder, labels, **settings)
        desk.start()
        opened.append(desk)
        return desk

    def close() -> None:
        while opened:
            opened.pop().close()

    yield again
    close()


@pytest.fixture
def desk(open_desk) -> Desk:
    return open_desk()


@pytest.fixture
def client(desk) -> Client:
    """Requests to the studio, as its page sends them."""
    return client_of(desk)
