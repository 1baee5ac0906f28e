"""Progress bars show what they are given, and nothing else."""

from __future__ import annotations

import io

import pytest

from handful import progress


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a terminal would get."""
    text = io.StringIO()
    monkeypatch.setattr(progress.messages, "_file", text)
    monkeypatch.setattr(progress.messages, "_force_terminal", True)
    monkeypatch.setattr(progress.messages, "is_interactive", True)
    monkeypatch.setattr(progress.messages, "_environ", {"TERM": "xterm", "COLUMNS": "200"})
    return text


def test_a_name_in_a_bar_is_neither_markup_nor_a_control_sequence(screen):
    with progress.progress_bar() as bar:
        bar("embedding with [bold]:x: \x1b[2J\u202e", 3)(3)
    assert "embedding with [bold]:x: \\x1b[2J\\u202e" in screen.getvalue()
    assert "\x1b[2J\\" not in screen.getvalue() and "\u202e" not in screen.getvalue()


def test_the_line_of_a_cell_is_shown_as_it_is(screen):
    with progress.grid_bar(1) as end:
        end("tac [bold]: failed: no such file \x1b]0;title\x07", False)
    assert "tac [bold]: failed: no such file \\x1b]0;title\\x07" in screen.getvalue()
