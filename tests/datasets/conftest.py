"""Shared by the tests of data sets: a cache of one's own, and the real data where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HANDFUL_CACHE", str(folder))
    return folder


@pytest.fixture
def real() -> Callable[[str], Path]:
    """The path of a real data set that is too large to ship; skips the test where it is not."""

    def find(name: str) -> Path:
        if not (REAL / name).exists():
            pytest.skip(f"needs the real data {name}, which are not part of the project")
        return REAL / name

    return find
