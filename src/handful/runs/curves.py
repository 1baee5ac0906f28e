"""What a run's validations say while it is trained: accuracy against the images that it was shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HandfulError
from ..methods import method_class
from .config import read_config
from .results import is_number
from .writing import METRICS

Row = dict[str, Any]
RANDOM = "val_random_references"


def curve_rows(runs: Sequence[Path]) -> list[Row]:
    """One row per validation of each run; ``learned`` is the gain of learned references over random ones, or None."""
    rows: list[Row] = []
    for run in runs:
        config = read_config(run)
        each = config.train.images + (
            config.extra_unlabelled if config.rotation_loss or config.pseudo_label_loss else 0
        )
        lines = _lines(run / METRICS)
        for line in lines:
            other = line.get(RANDOM)
            rows.append({
                "run": run.name, "method": method_class(config.method).title, "episode": line["episode"],
                "images": line["episode"] * each, "accuracy": line["val_accuracy"], "interval": line["val_interval"],
                "learned": line["val_accuracy"] - other if is_number(other, 0.0) else None,
            })  # fmt: skip
    return rows


def _lines(path: Path) -> list[Row]:
    needed = ("episode", "val_accuracy", "val_interval")
    if not path.is_file():
        raise HandfulError(f"{path.parent} has no {METRICS}: it was not validated yet")
    found: list[Row] = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = json.loads(text)
            if not all(is_number(line[name], 0.0) for name in needed):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HandfulError(f"line {number} of {path} is damaged: resume the training, or remove the line") from None
        found.append(line)
    if not found:
        raise HandfulError(f"{path} is empty: the run was not validated yet")
    return found


def late_gain(rows: Sequence[Row]) -> float | None:
    """Points of accuracy per million images over the last third of the images; None for fewer than three validations.

    >>> late_gain([{"images": 1e6 * n, "accuracy": 40 + n} for n in range(10)])
    1.0
    """
    last = rows[-1]["images"]
    late = [row for row in rows if row["images"] >= 2 * last / 3]
    if len(late) < 3:
        return None
    slope = np.polyfit([row["images"] / 1e6 for row in late], [row["accuracy"] for row in late], 1)[0]
    return round(float(slope), 6)
