"""``--help``, ``--version`` and a mistake on the command line are answered without importing what takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Runs one command after the other in one process; a line each: exit code, what it said, and what is imported by now.
SCRIPT = """
import contextlib, io, json, sys
from handful.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["handful", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, said.getvalue(), sorted({name.partition(".")[0] for name in sys.modules})]))
"""
LARGE = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "lightning", "lightning_fabric", "PIL", "joblib", "ray"}
GROUPS = {"data": ("check", "prepare", "fetch"), "head": ("train", "evaluate")}
NAMES = (
    "methods",
    "datasets",
    "models",
    "train",
    "evaluate",
    "grid",
    "reproduce",
    "export",
    "demo",
    "label",
    "predict",
    "bench",
)
ANSWERED = [  # words, exit code, what the answer holds
    (["--version"], 0, "handful "),
    (["--help"], 0, "Usage: handful"),
    *(([name, "--help"], 0, f"Usage: handful {name}") for name in (*NAMES, *GROUPS)),
    *(([name, word, "--help"], 0, f"Usage: handful {name} {word}") for name, words in GROUPS.items() for word in words),
    (["--versoin"], 2, "No such option"),
    (["train", "--methd", "tac"], 2, "No such option"),
    (["trian"], 2, "No such command"),
    (["train", "--method", "tac"], 2, "Missing option"),
    (["train", "--method", "tac", "--out", "run", "--ways", "many"], 2, "Invalid value"),
]
LISTED = [(["datasets"], 0, "omniglot"), (["methods"], 0, "tacdap")]


@pytest.fixture(scope="module")
def answers() -> list[tuple[int, str, set[str]]]:
    """Each command's exit code, its answer, and what had been imported after it; the lists come last."""
    words = json.dumps([case[0] for case in [*ANSWERED, *LISTED]])
    command = [sys.executable, "-c", SCRIPT, words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(code, said, set(imported)) for code, said, imported in map(json.loads, done.stdout.splitlines())]


def test_help_and_mistakes_are_answered_without_large_imports(answers):
    for (words, code, expected), (found, said, imported) in zip(ANSWERED, answers, strict=False):
        assert found == code and expected in said, (words, said)
        assert not imported & LARGE, (words, imported & LARGE)


def test_lists_are_printed_without_what_only_training_needs(answers):
    for (_, code, expected), (found, said, imported) in zip(LISTED, answers[-2:], strict=True):
        assert found == code and expected in said
        assert not imported & {"sklearn", "matplotlib", "lightning", "lightning_fabric", "joblib", "ray"}
    assert "torch" not in answers[-2][2] and "torch" in answers[-1][2], "a method is a module of PyTorch, data are not"
