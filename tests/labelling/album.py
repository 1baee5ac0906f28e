"""Small pictures of one colour each, and tables of labels."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (200, 40, 40), "green": (40, 190, 60), "blue": (40, 60, 200), "sand": (210, 190, 120)}


def draw(path: Path, colour: tuple[int, int, int], rng: np.random.Generator) -> None:
    pixels = np.clip(np.array(colour) + rng.normal(0, 25, (24, 24, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def truth(path: str) -> str:
    return "sand" if path.startswith("other") else list(COLOURS)[int(Path(path).stem) % 3]


def write_labels(path: Path, rows: list[tuple[str, str]], header: tuple[str, ...] = ("path", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path
