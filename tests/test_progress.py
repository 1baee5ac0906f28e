"""Progress bars show what they are given, and nothing else."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from types import SimpleNamespace

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


def test_a_cell_says_how_many_are_done_and_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.grid_bar(6, at_once=2) as end:
        end("a: finished before", True)
        end("b: finished before", True)
        now[0] = 60.0
        end("c: 50 %", False)  # d is half done: 1.5 cells a minute, and 2.5 to go
        now[0] = 120.0
        end("d: 50 %", False)
        end("e: 50 %", False)
        end("f: 50 %", False)
    assert capsys.readouterr().err.splitlines() == [
        "a: finished before", "b: finished before", "c: 50 % (3 of 6 cells, about 0:01:40 left)",
        "d: 50 % (4 of 6 cells, about 0:01:12 left)", "e: 50 % (5 of 6 cells, about 0:00:17 left)",
        "f: 50 % (6 of 6 cells, about 0:00:00 left)",
    ]  # fmt: skip


def test_the_time_left_goes_down_between_two_cells(screen, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    column = progress._CellsLeft()
    with progress._layout(time_left=False) as bars:
        bars.add_task("cells", total=2, note="", until=None)
        (task,) = bars.tasks
        assert column.render(task).plain == ""
        bars.update(task.id, until=90.0)
        assert column.render(task).plain == "about 0:01:30 left"
        now[0] = 30.0
        assert column.render(task).plain == "about 0:01:00 left"
        now[0] = 600.0
        assert column.render(task).plain == "about 0:00:00 left"


def test_a_training_writes_a_line_for_each_validation_to_a_log(capsys):
    with progress.training_bar("training tac", 20) as show:
        show(5, 3.0, 5, -1.0, None)
        show(10, 6.0, 10, 61.2, 61.2)
        show(20, 0.0, 0, 61.2, 60.0)
    assert capsys.readouterr().err.splitlines() == [
        "training tac: episode 10 of 20, validation 61.2 % (best 61.2 %)",
        "training tac: episode 20 of 20, validation 60.0 % (best 61.2 %)",
    ]


def test_a_bar_knows_nobody():
    """It is at the bottom: of the package it may know the terminal only."""
    tree = ast.parse(Path(progress.__file__).read_text(encoding="utf-8"))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert imported == ["terminal"]
