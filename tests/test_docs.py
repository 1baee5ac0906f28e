"""README and docs: links, commands, options and file names exist; Python examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from typer.main import get_command

from handful.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
# Whole, or from any folder on: src/handful/datasets/pickles.py, datasets/pickles.py, pickles.py.
SOURCE = re.compile(r"(?:[\w.-]+/)*\w+\.py")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def faults(line: str) -> list[str]:
    """What is wrong with a ``handful`` command line: a command or an option that does not exist.

    Placeholders (``...``, ``[--others 0.4]``) are allowed; values are not looked at.
    """
    words = shlex.split(line.replace("[", " ").replace("]", " "), comments=True)
    command, path = get_command(app), "handful"
    context = click.Context(command)
    rest = words[words.index("handful") + 1 :]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return [f"'{path} {name}' is no command"]
        command, path = command.commands[name], f"{path} {name}"
        context = click.Context(command, parent=context)
    known = {
        option
        for parameter in command.get_params(context)
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    }
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [f"'{path}' has no option {option}" for option in given if option not in known | {"--help", "-h"}]


def command_lines(text: str) -> list[str]:
    """The ``handful`` commands in code blocks of the shell, and in spans of code."""
    blocks = [body for kind, body in FENCE.findall(text) if kind in ("console", "bash", "sh", "shell")]
    lines = [line.removeprefix("$ ").strip() for body in blocks for line in re.sub(r"\\\n\s*", "", body).splitlines()]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
    return [line for line in (*lines, *spans) if re.match(r"handful [a-z-]|torchrun .*-m handful ", line)]


@each_page
def test_every_relative_link_exists(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} does not exist"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@each_page
def test_every_command_and_option_exists(page):
    for line in command_lines(page.read_text(encoding="utf-8")):
        assert not faults(line), line


@each_page
def test_every_source_file_that_is_named_exists(page):
    """``runs/training.py`` in code is a file of the package, of the tests or of the documentation."""
    folders = ("src", "tests", "docs")
    ours = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    text = page.read_text(encoding="utf-8")
    shell = [body for kind, body in FENCE.findall(text) if kind == "console"]
    for code in (*shell, *SPAN.findall(FENCE.sub("", text))):
        for name in SOURCE.findall(code):
            example = Path(name).name == "yours.py"  # what CONTRIBUTING tells the reader to write
            assert example or any(f"/{path}".endswith(f"/{name}") for path in ours), f"{name} does not exist"


@pytest.mark.parametrize("name", ["README.md", "docs/methods.md"])
def test_the_python_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    blocks = [body for kind, body in FENCE.findall((ROOT / name).read_text(encoding="utf-8")) if kind == "python"]
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})


def test_the_commands_of_the_pages_are_found():
    """The tests above would pass if nothing were found."""
    assert len(command_lines((ROOT / "README.md").read_text(encoding="utf-8"))) >= 8
    assert len(PAGES) > 30
    assert faults("handful trane --method tac") == ["'handful trane' is no command"]
    assert faults("handful head train --wyas 5 --out x") == ["'handful head train' has no option --wyas"]
    assert faults("handful evaluate runs/tac [--others 1]  # so") == ["'handful evaluate' has no option --others"]
    assert not faults("handful train --no-distractors --set scale=0.1 ...")
