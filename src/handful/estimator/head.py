"""Heads: what was learned about an embedder's space on other classes, for the estimator to use on new ones.

A head is a linear map and, if they help there, reference vectors that make the space task-adaptive. It is one
safetensors file: numbers and a line of JSON, so loading it runs nothing. Some come with the package, under the name of
their embedder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..embedders.base import STRETCH
from ..embedders.shipped import is_shipped, run_of
from ..errors import HandfulError
from ..io import write_atomic
from .refinement import Adapt, Scatter
from .rows import TINY, Floats, Frame, lengths, mild, unit
from .task_space import assign_references, error_vectors, null_basis

SUFFIX = ".safetensors"
_HERE = Path(__file__).resolve().parent / "heads"
_KEY = "handful-head"
LARGEST = 1e6  # number of a map or of references: theirs are about 1, so this is damage


@dataclass(frozen=True)
class Head:
    """A map of embeddings and the references of the task-adaptive space.

    Attributes:
        name: in messages; that of the embedder, for those that come with the package.
        features: of an embedding.
        map: (dim, features), or None to leave embeddings as they are.
        references: (most classes, dim), or None for a head that only maps.
        facts: what it was trained on, and what was measured.
    """

    name: str
    features: int
    map: NDArray[np.float32] | None = None
    references: NDArray[np.float32] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def frame(self, x: Floats) -> Frame:
        """How rows become unit vectors. The task-adaptive space needs no centre: it removes what all classes share."""
        return Frame.of(x, self.map, centred=self.references is None)

    def adapt(self, totals: NDArray[np.float64]) -> Adapt:
        """TAC's task-adaptive space for classes with these sums of labelled rows (classes, dim)."""
        if self.references is None:
            raise ValueError(f"the head {self.name} has no references")
        if len(totals) > len(self.references):
            raise ValueError(
                f"the head {self.name} tells at most {len(self.references)} classes apart, got {len(totals)} classes"
            )
        every = mild(self.references)
        references = every[assign_references(totals, every)]

        def adapt(
            sums: NDArray[np.float64], counts: NDArray[np.float64], scatter: Scatter
        ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            basis = null_basis(error_vectors(sums, references))  # (dim, classes or fewer)
            return np.eye(len(basis)) - basis @ basis.T, np.zeros(len(basis))

        left = totals @ adapt(totals, totals, Scatter(totals, 0))[0]
        if not unit(left, TINY * np.maximum(lengths(totals), 1)).any():
            raise ValueError(
                f"the head {self.name} leaves no direction in which these {len(totals)} classes differ: its space has "
                f"{totals.shape[1]} dimensions, and should have more than there are classes"
            )
        return adapt

    def save(self, path: Path) -> None:
        """Write it as one file; in half precision, which is enough, if its numbers have that size."""
        if fault := _fault(self):
            raise HandfulError(f"the head {self.name!r} cannot be saved: {fault}")
        tensors = {"map": self.map, "references": self.references}
        arrays = {name: value.astype(_precision(value)) for name, value in tensors.items() if value is not None}
        arrays = arrays or {"nothing": np.zeros(0, dtype=np.float16)}
        about = {"name": self.name, "features": int(self.features), "facts": self.facts}
        try:
            text = json.dumps(about)
        except (TypeError, ValueError, RecursionError) as error:
            raise HandfulError(f"the head {self.name!r} cannot be saved: its facts must be of JSON's kinds") from error
        write_atomic(path, save(arrays, metadata={_KEY: text}))


def heads() -> list[str]:
    """Names of the heads that come with the package."""
    return sorted(path.stem.replace("--", ":") for path in _HERE.glob(f"*{SUFFIX}"))


def head_of(embedder: str, head: str | Path | Head | None = "auto") -> Head | None:
    """The head to use with an embedder: ``"auto"`` is the one that comes with handful for it, if there is one."""
    if head == "auto":
        name = _head_name(embedder)
        head = _shipped(name) if name in heads() else None
    return None if head is None else load_head(head)


def load_head(head: str | Path | Head) -> Head:
    """A head by name or path; a file that exists goes before a name."""
    if isinstance(head, Head):
        if fault := _fault(head):
            raise HandfulError(f"the head {head.name!r} cannot be used: {fault}")
        return head
    if not isinstance(head, (str, Path)):
        raise HandfulError(f"a head must be a name, a path or a handful.Head, got {type(head).__name__}")
    path = Path(head)
    if not _is_file(path):
        name = str(head) if str(head) in heads() else _head_name(str(head))
        if name not in heads():
            raise HandfulError(f"there is no head '{head}': give a file of 'handful head train', or one of {heads()}")
        path = _shipped(name)
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            names = set(file.keys())
            tensors = {name: _narrow(file.get_tensor(name)) for name in names & {"map", "references"}}
        found = Head(about["name"], about["features"], tensors.get("map"), tensors.get("references"), about["facts"])
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise HandfulError(f"{path} is not a head of 'handful head train', or a damaged one") from error
    if unknown := names - {"map", "references", "nothing"}:
        raise HandfulError(f"{path} is a damaged head: it has an array '{min(unknown)}', which no head has")
    if fault := _fault(found):
        raise HandfulError(f"{path} is a damaged head: {fault}")
    return found


def _head_name(embedder: str) -> str:
    """The name of the head for an embedder, if there is one: the same however the model behind it is named.

    A folder of the user's own that has the name of a model is another model, and has no head.
    """
    try:
        run = run_of(embedder)
    except HandfulError:  # no run of this name
        return embedder
    if run is None:
        return embedder.removesuffix(f":{STRETCH}")
    return f"conv4:{run.resolve().name.removeprefix('tac-')}" if is_shipped(run) else ""


def _shipped(name: str) -> Path:
    return _HERE / f"{name.replace(':', '--')}{SUFFIX}"


def is_head(path: Path) -> bool:
    """Whether a file is a head, which another may replace."""
    try:
        load_head(path)
    except HandfulError:
        return False
    return not path.is_symlink()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Floats as float32, infinite where they are too large for it; anything else as it is."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32) if array.dtype.kind == "f" else array


def _precision(array: NDArray[Any]) -> type[np.floating[Any]]:
    """The type that an array is saved in: half precision ends at 65504, and has few digits below 1e-4."""
    return np.float16 if 1e-2 < np.abs(array).max() < 6e4 else np.float32


def _fault(head: Head) -> str | None:
    """What makes a head unusable, if anything does."""
    if not isinstance(head.name, str):
        return f"its name must be a string, got {type(head.name).__name__}"
    if not isinstance(head.features, Integral) or isinstance(head.features, bool) or head.features < 1:
        return f"its features must be a whole number from 1 on, got {_brief(head.features)}"
    if not isinstance(head.facts, dict):
        return f"its facts must be a dict, got {type(head.facts).__name__}"
    features = int(head.features)
    if fault := _array_fault("map", head.map, features):
        return fault
    if fault := _array_fault("references", head.references, features if head.map is None else len(head.map)):
        return fault
    if head.references is not None and len(head.references) > 1 and not np.ptp(head.references, axis=0).any():
        return "its references are all the same"
    return None


def _array_fault(name: str, array: Any, columns: int) -> str | None:
    if array is None:
        return None
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return f"its {name} must be a NumPy array of floats, got {getattr(array, 'dtype', type(array).__name__)}"
    if array.ndim != 2 or not array.size or array.shape[1] != columns:
        return f"its {name} must have rows of {columns} numbers each, got shape {array.shape}"
    largest = np.abs(array).max()  # NaN if there is one
    if not 0 < largest <= LARGEST:
        return f"its {name} must hold numbers up to {LARGEST:g}, not all of them 0, got {largest:g}"
    return None


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


__all__ = ["SUFFIX", "Head", "head_of", "heads", "is_head", "load_head"]
