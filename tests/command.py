"""The command line, as tests call it: in this process, which has imported everything already, or in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from handful.cli import main

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


def start_handful(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(_command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "handful", *map(str, arguments)]


# The command in a process that is killed before its file operation number KILL_AT below FOLDER, or counts them all.
_KILLED = """
import os, signal, sys
folder, kill_at = sys.argv[1], int(sys.argv[2])
count = 0

def at_a_file_operation(event, arguments):
    global count
    if event == "open":
        changes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    else:
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
    if changes and str(arguments[0]).startswith(folder):
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(at_a_file_operation)
sys.argv = ["handful", *sys.argv[3:]]
from handful.cli import main
try:
    main()
finally:
    print("file operations:", count)
"""


def file_operations(folder: Path, *arguments: object) -> int:
    """Run the command to its end: how many file operations below the folder it takes."""
    done = _run_killed(folder, 0, arguments)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition(":")[2])


def kill_at_file_operation(number: int, folder: Path, *arguments: object) -> None:
    """Run the command until just before this file operation below the folder, where it is killed."""
    done = _run_killed(folder, number, arguments)
    assert done.returncode == -signal.SIGKILL, f"it ended before its file operation {number}: {done.stderr}"


def _run_killed(folder: Path, number: int, arguments: tuple[object, ...]) -> Done:
    command = [sys.executable, "-c", _KILLED, os.fspath(folder), str(number), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
