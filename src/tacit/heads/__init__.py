"""Heads: what was learned about an embedder's space on other classes, for the estimator to use on new ones.

A head is a linear map and, if they help there, reference vectors that make the space task-adaptive. It is one
safetensors file: numbers and a line of JSON, so loading it runs nothing. Some come with the package, under the name of
their embedder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .. import functional as F
from ..checkpoint import write_atomic
from ..clustering import Floats, Frame, Space, plain_space, unit
from ..errors import TacitError
from ..methods.tapnet import assign_references

SUFFIX = ".safetensors"
_HERE = Path(__file__).resolve().parent
_KEY = "tacit-head"


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
        if self.references is None:
            return Frame.of(x, self.map)
        return Frame(np.zeros(x.shape[1], dtype=x.dtype), None if self.map is None else self.map.astype(x.dtype))

    def space(self, totals: NDArray[np.float64]) -> Space:
        """The space in which clusters are found, given the sums of the labelled points of each class."""
        if self.references is None:
            return plain_space
        if len(totals) > len(self.references):
            raise ValueError(
                f"the head {self.name} tells at most {len(self.references)} classes apart, got {len(totals)} classes"
            )
        every = torch.from_numpy(self.references.astype(np.float64))
        references = every[assign_references(torch.from_numpy(totals), every)]

        def adapt(means: NDArray[np.float64]) -> tuple[Floats, Floats]:
            basis = F.null_basis(F.error_vectors(torch.from_numpy(means), references)).mT.numpy()  # (classes, dim)
            return unit(means - (means @ basis.T) @ basis), basis

        return adapt

    def save(self, path: Path) -> None:
        """Write it as one file; the map in half precision, which is enough."""
        tensors = {"map": self.map, "references": self.references}
        arrays = {name: value.astype(np.float16) for name, value in tensors.items() if value is not None}
        arrays = arrays or {"nothing": np.zeros(0, dtype=np.float16)}
        about = {"name": self.name, "features": self.features, "facts": self.facts}
        write_atomic(path, save(arrays, metadata={_KEY: json.dumps(about)}))


def heads() -> list[str]:
    """Names of the heads that come with the package."""
    return sorted(path.stem.replace("--", ":") for path in _HERE.glob(f"*{SUFFIX}"))


def head_of(embedder: str, head: str | Path | Head | None = "auto") -> Head | None:
    """The head to use with an embedder: ``"auto"`` is the one that comes with tacit for it, if there is one."""
    if head == "auto":
        head = embedder if embedder in heads() else None
    return None if head is None else load_head(head)


def load_head(head: str | Path | Head) -> Head:
    """A head by name or path; a file that exists goes before a name."""
    if isinstance(head, Head):
        return head
    path = Path(head)
    if not path.is_file():
        if str(head) not in heads():
            raise TacitError(f"there is no head '{head}': give a file of 'tacit head train', or one of {heads()}")
        path = _HERE / f"{str(head).replace(':', '--')}{SUFFIX}"
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: np.asarray(file.get_tensor(name), dtype=np.float32) for name in file.keys()}  # noqa: SIM118
        found = Head(
            str(about["name"]), int(about["features"]), tensors.get("map"), tensors.get("references"), about["facts"]
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TacitError(f"{path} is not a head of 'tacit head train', or a damaged one") from error
    dim = found.features if found.map is None else len(found.map)
    shapes = [part.shape[-1:] for part in (found.map, found.references) if part is not None]
    fits = shapes in ([], [(found.features,)], [(dim,)], [(found.features,), (dim,)])
    if not fits or not all(np.isfinite(part).all() for part in tensors.values()):
        raise TacitError(f"{path} is a damaged head: its arrays do not fit each other")
    return found


__all__ = ["SUFFIX", "Head", "head_of", "heads", "load_head"]
