"""A rival from a Python file of the user's, for `handful compare --rival`; the file is run on explicit request only."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..embedders.base import reason
from ..errors import HandfulError
from .rivals import Labels
from .shared import Floats, Shared

FORM = "write NAME=FILE.py:FUNCTION"


@dataclass(frozen=True)
class OwnRival:
    """``function(x, given, classes) -> probabilities (rows, classes)`` of a file, loaded in each process that needs it.

    Attributes:
        name: in tables.
        path: of the file.
        function: its name there.
        code: checksum of the file: with other code, it is measured again.
    """

    name: str
    path: str
    function: str
    code: str

    def __call__(self, shared: Shared, given: Labels, classes: int) -> Floats:
        function = _loaded(self.path, self.function)
        try:
            found = np.asarray(function(shared.x.copy(), given.copy(), classes))
        except Exception as error:  # whatever the user's code raises
            raise HandfulError(
                f"the rival {self.name} ({self.path}:{_line(error, self.path)}) fails: {reason(error)}"
            ) from error
        if found.shape != (len(given), classes) or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise HandfulError(
                f"the rival {self.name} must return finite probabilities of the shape ({len(given)}, {classes}), got "
                f"{found.dtype} {found.shape}"
            )
        return found


def read_own_rival(text: str) -> OwnRival:
    """The rival that ``NAME=FILE.py:FUNCTION`` names.

    Raises:
        HandfulError: if it is not of this form, or there is no such file or function.
    """
    name, equals, place = text.partition("=")
    file, colon, function = place.rpartition(":")
    if not (name and equals and file and colon and function):
        raise HandfulError(f"--rival '{text}' names no function: {FORM}")
    path = Path(file).expanduser().resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HandfulError(f"--rival: cannot read {file}: {error.strerror or error}") from error
    _loaded(str(path), function)
    return OwnRival(name, str(path), function, hashlib.sha256(content).hexdigest() + function)


@cache
def _loaded(path: str, function: str) -> Any:
    """The function; the file is run once in a process, and finds modules beside it as a script would."""
    name = f"handful_rival_{hashlib.sha256(path.encode(errors='surrogatepass')).hexdigest()[:12]}"
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.append(folder)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise HandfulError(f"--rival: {path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever a module may do
            del sys.modules[name]
            raise HandfulError(f"--rival: cannot run {path}: {reason(error)}") from error
    found = getattr(sys.modules[name], function, None)
    if not callable(found):
        raise HandfulError(f"--rival: {path} has no function '{function}'")
    return found


def _line(error: BaseException, path: str) -> int:
    """The last line of the file that an error went through."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
