"""The command line, as tests call it: in this process, which has imported everything already, or in one of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from glob import escape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from handful.cli import main
from traps import Traps

Done = subprocess.CompletedProcess[str]


def handful(*arguments: object) -> Done:
    """Run the command in this process. Bugs, which would print a traceback, are raised."""
    words = ["handful", *map(str, arguments)]
    out, error, code = StringIO(), StringIO(), 0
    with patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(error):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())


def handful_process(*arguments: object, cwd: Path | None = None) -> Done:
    """Run the command in a process of its own, as a shell does."""
    return subprocess.run(_command(arguments), capture_output=True, text=True, check=False, cwd=cwd)


def handful_with(traps: Traps, *arguments: object) -> Done:
    """Run the command in a process with traps in it."""
    command = _command(arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=traps.environment())


def start_handful(traps: Traps, *arguments: object) -> subprocess.Popen[str]:
    """Start the command in a process with traps in it."""
    return subprocess.Popen(
        _command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=traps.environment()
    )


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "handful", *map(str, arguments)]


def file_operations(folder: Path, *arguments: object) -> int:
    """Run the command to its end: how many file operations below the folder it takes."""
    with TemporaryDirectory() as place:
        traps = Traps(Path(place, "traps"))
        traps.count(f"{escape(str(folder))}*")
        done = handful_with(traps, *arguments)
        assert done.returncode == 0, done.stderr
        return traps.counted()


def kill_at_file_operation(number: int, folder: Path, *arguments: object) -> None:
    """Run the command until just before this file operation below the folder, where it is killed."""
    with TemporaryDirectory() as place:
        traps = Traps(Path(place, "traps"))
        traps.send(signal.SIGKILL, f"{escape(str(folder))}*", at=number)
        done = handful_with(traps, *arguments)
    assert done.returncode == -signal.SIGKILL, f"it ended before its file operation {number}: {done.stderr}"
