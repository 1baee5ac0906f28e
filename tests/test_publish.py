"""No command replaces a file that is not ours; tests/labelling/test_export.py has the details."""

from __future__ import annotations

import re
import sys

import pytest

from handful.cli import main


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["demo", "--out", "OUT"], "report.html"),
        (["reproduce", "table1", "--dataset", "glyphs", "--budget", "minutes", "--out", "OUT"], "report.md"),
        (["grid", "--method", "pn", "--out", "OUT"], "grid.csv"),
        (["bench", "project", "--out", "OUT"], "project.json"),
    ],
)
def test_no_command_replaces_a_file_of_the_users(words, name, tmp_path, capsys, monkeypatch):
    (tmp_path / name).write_bytes(b"mine")
    monkeypatch.setattr(sys, "argv", ["handful", *(str(tmp_path) if word == "OUT" else word for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert re.search("is not a file that handful wrote|exists and is not from a", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_bytes() == b"mine"
