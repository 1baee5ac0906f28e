"""What a long comparison has measured so far, on disk: run again, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from ..io import read_object, refuse_links, write_json

FOLDER = "cells"


def digest(*arrays: NDArray[Any]) -> str:
    """A checksum of arrays: their shapes, types and numbers."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape} {array.dtype.str}".encode())
        for start in range(0, len(array), 1 << 16):  # it may be larger than memory
            found.update(np.ascontiguousarray(array[start : start + (1 << 16)]).data)
    return found.hexdigest()


def code_of(*names: str) -> str:
    """A checksum of modules of this folder: other code may measure other numbers."""
    found = hashlib.sha256()
    for name in names:
        found.update((Path(__file__).parent / name).read_bytes())
    return found.hexdigest()


class Kept:
    """A folder of JSON files, one for each source and case; nothing is kept without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def cell(self, key: Mapping[str, Any], codes: Mapping[str, str]) -> Cell:
        """What is known of a case; ``codes``: of each classifier, by whose code its outcomes are current."""
        if self.folder is None:
            return Cell(None, key, codes, {})
        refuse_links(self.folder, FOLDER)
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        path = self.folder / FOLDER / f"{name}.json"
        found: dict[str, Any] = {}
        if path.exists():
            try:
                content = read_object(path)
                found = {name: entry for name, entry in content["classifiers"].items() if _is_sound(entry)}
            except (HandfulError, KeyError, AttributeError, TypeError) as error:
                raise HandfulError(f"{path} is damaged: remove it, and it is measured again") from error
        return Cell(path, key, codes, found)


def _is_sound(entry: Any) -> bool:
    return isinstance(entry["code"], str) and all(isinstance(one, dict) for one in entry["outcomes"])


class Cell:
    """The outcomes of every classifier in the draws of one case, from the first draw on.

    Those of classifiers that are not asked for are left as they are, unless their code has changed.
    """

    def __init__(
        self, path: Path | None, key: Mapping[str, Any], codes: Mapping[str, str], found: dict[str, Any]
    ) -> None:
        self.path, self.key, self.codes = path, key, codes
        self.found = {name: entry for name, entry in found.items() if codes.get(name, entry["code"]) == entry["code"]}

    def count(self, name: str) -> int:
        """Draws of which the outcome is known."""
        return len(self.found[name]["outcomes"]) if name in self.found else 0

    def add(self, outcomes: Mapping[str, Mapping[str, float]]) -> None:
        """Keep the outcomes of the next draw, nan as null."""
        for name, one in outcomes.items():
            entry = self.found.setdefault(name, {"code": self.codes[name], "outcomes": []})
            entry["outcomes"].append({key: None if math.isnan(value) else value for key, value in one.items()})
        if self.path is not None:
            write_json(self.path, {**self.key, "classifiers": self.found})

    def columns(self, name: str, draws: int) -> dict[str, NDArray[np.float64]]:
        """The outcomes of the first draws, a column for each of their numbers."""
        rows = self.found[name]["outcomes"][:draws]
        return {key: np.array([row[key] for row in rows], dtype=np.float64) for key in rows[0]}
