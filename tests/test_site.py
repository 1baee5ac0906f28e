"""The documentation site: the build is strict, and the reference of the commands has all of them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from handful.cli import app

ROOT = Path(__file__).parents[1]
SITE_PACKAGES = ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_design", "sphinx_copybutton")


def build(source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build a site as ``make docs`` does."""
    missing = [name for name in SITE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the site needs {', '.join(missing)}: install the extra 'docs' or 'dev'")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", *options, "-b", "html", source, out]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    done = build(ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    docs = ROOT / "docs"
    sources = {path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")}
    assert sources <= pages
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "handful label" in commands
    assert "--none-threshold" in commands
    assert "–" not in commands, "two hyphens of an option became a dash"
    python = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert "<strong>expected_accuracy_</strong>" in python, "an attribute lost its last underscore"
    assert "Alias for field number" not in python
    assert "of the others are right" in (tmp_path / "tutorials" / "label-a-folder.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "broken", ["[a page](gone.md)", "[a heading](#gone)", "![a picture](gone.png)", "```{toctree}\ngone\n```"]
)
@pytest.mark.slow
def test_a_broken_link_fails_the_build(broken, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    settings = ["-C", "-D", "extensions=myst_parser", "-D", "myst_heading_anchors=3"]
    (source / "index.md").write_text("# Title\n\n[it](#title)\n", encoding="utf-8")
    assert build(source, tmp_path / "whole", *settings).returncode == 0
    (source / "index.md").write_text(f"# Title\n\n{broken}\n", encoding="utf-8")
    done = build(source, tmp_path / "site", *settings)
    assert done.returncode != 0
    assert "gone" in done.stderr


def test_the_reference_has_every_command_and_option(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from _commands import reference
    from typer.main import get_command

    told = reference()
    command = get_command(app)
    for name, one in command.commands.items():
        leaves = {f"{name} {part}": leaf for part, leaf in getattr(one, "commands", {}).items()} or {name: one}
        for path, leaf in leaves.items():
            start = re.search(rf"^#+ `handful {re.escape(path)}`$", told, re.MULTILINE)
            assert start, path
            part = told[start.end() :].split("\n## ")[0]
            for parameter in leaf.params:
                if parameter.opts[0].startswith("--") and parameter.name != "help" and not parameter.hidden:
                    assert f"`{parameter.opts[0]}" in part, (path, parameter.name)
    assert "......" not in told
