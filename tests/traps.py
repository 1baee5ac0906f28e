"""Traps: a process under test stops at a fixed file operation, not after some time.

A trap lies at the operations that change files whose path matches a pattern. The process that makes number ``at`` of
them is killed, gets a signal or waits, just before that operation. Traps are in every Python process that is started
with their environment, so also in the workers that a command starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GUARD = 1800.0  # seconds after which a test that waits is given up: a guard against hanging, nothing is measured by it

# Python imports the module of this name when it starts. Each trap leaves a file for each time that it has sprung.
_HOOK = """
import atexit, fnmatch, glob, json, os, pathlib, sys, time

folder = pathlib.Path(__file__).parent
traps = json.loads((folder / "traps.json").read_text())
counts = [0] * len(traps)
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
inside = False

def spring(number, trap):
    for time_ in range(trap["times"]):
        try:
            (folder / f"{number}-{time_}.sprung").touch(exist_ok=False)
            break
        except FileExistsError:
            continue
    else:
        return
    if trap["signal"] is not None:
        os.kill(os.getpid(), trap["signal"])
    deadline = time.monotonic() + trap["guard"]
    while trap["until"] is not None and len(glob.glob(trap["until"])) < trap["paths"]:
        if time.monotonic() > deadline:
            os._exit(70)
        time.sleep(0.01)

def at_an_event(event, arguments):
    global inside
    if inside:
        return
    if event == "open":
        if not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
    elif event not in CHANGES:
        return
    paths = [str(path) for path in arguments[: 2 if event == "os.rename" else 1]]
    inside = True
    try:
        for number, trap in enumerate(traps):
            if any(fnmatch.fnmatchcase(path, trap["pattern"]) for path in paths):
                counts[number] += 1
                if counts[number] == trap["at"]:
                    spring(number, trap)
    finally:
        inside = False

def tell():
    global inside
    inside = True
    (folder / "counts.json").write_text(json.dumps(counts))

sys.addaudithook(at_an_event)
atexit.register(tell)
"""


class Traps:
    """Traps that lie in a folder of their own, for processes that start after they were set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._traps = folder, list[dict[str, Any]]()
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_HOOK)
        self._set("", at=0)

    def _set(self, pattern: str, at: int, **what: Any) -> None:
        usual = {"signal": None, "until": None, "paths": 1, "times": 1, "guard": GUARD}
        self._traps.append({**usual, **what, "pattern": pattern, "at": at})
        (self.folder / "traps.json").write_text(json.dumps(self._traps))

    def count(self, pattern: str) -> None:
        self._set(pattern, at=0)

    def send(self, number: signal.Signals, pattern: str, at: int = 1, times: int = 1) -> None:
        """A process sends itself a signal; the trap springs so many times in all, once in each process."""
        self._set(pattern, at, signal=int(number), times=times)

    def hold(self, pattern: str, until: str, paths: int = 1) -> None:
        """The first process that comes by waits until so many paths match ``until``."""
        self._set(pattern, at=1, until=until, paths=paths)

    def environment(self) -> dict[str, str]:
        paths = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def sprung(self) -> int:
        """How many times traps have sprung."""
        return len(list(self.folder.glob("*.sprung")))

    def counted(self) -> int:
        """How many operations the process that ended last made at the trap that was set last."""
        return int(json.loads((self.folder / "counts.json").read_text())[-1])


def wait_until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a process does."""
    deadline = time.monotonic() + GUARD
    while not there():
        assert process.poll() is None or there(), f"the process ended before it: {process.communicate()}"
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.01)
