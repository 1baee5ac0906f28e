"""Names of files and classes are shown letter by letter, whatever a terminal or rich would make of them."""

from __future__ import annotations

import io
import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from rich.table import Table

import handful
from handful import cli
from handful.cli.options import console
from handful.progress import messages
from handful.terminal import Terminal, json_text, printable

NAMES = ["\x1b[2Jgone", "over\rwritten", "a\nb", "\u202egpj.exe", "\x9b31m", "caf\udce9", "\x07"]


def shown(*things: object, **options: object) -> str:
    terminal = Terminal()
    terminal.file = io.StringIO()
    for thing in things:
        terminal.print(thing, **options)
    return terminal.file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_no_name_controls_the_terminal(name):
    table = Table(name, title=name, box=None)
    table.add_row(name)
    for text in (shown(name), shown(table), shown(f"not read: {name}", style="bold", soft_wrap=True)):
        assert text.replace("\n", "").isprintable()
        assert printable(name) in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/]", ":x:", ":smiley: [link=http://x]y[/link]", "\\[x]"])
def test_no_name_is_markup_or_an_emoji(name):
    table = Table(name, box=None)
    table.add_row(name)
    assert shown(name) == f"{name}\n"
    assert shown(table).count(name) == 2


def test_both_streams_are_such_terminals():
    assert isinstance(console, Terminal) and isinstance(messages, Terminal) and messages.stderr
    for found in iter_modules(cli.__path__):
        module = import_module(f"handful.cli.{found.name}")
        assert getattr(module, "console", console) is console and getattr(module, "messages", messages) is messages


def test_commands_put_no_style_into_words():
    """Markup would be shown as it is: style is said beside the words."""
    for path in Path(handful.__file__).parent.rglob("*.py"):
        assert not re.search(r"\[/?(bold|dim|italic|red|yellow|/)\b|rich\.markup", path.read_text(encoding="utf-8")), (
            path
        )


def test_json_for_a_terminal_is_printable_and_the_same():
    content = {name: ["grün", name] for name in NAMES}
    text = json_text(content)
    assert json.loads(text) == content and "grün" in text
    assert text.replace("\n", "").isprintable()


def test_an_error_is_shown_as_it_is(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["handful", "label", "\x1b[2J[bold]:x:", "--out", "out"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "handful: no such folder or archive: \\x1b[2J[bold]:x:\n"
