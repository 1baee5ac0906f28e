"""Files that are either whole or not there: atomic writes, and JSON that is read as strangers' input."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import HandfulError

DEEPEST = 32  # levels of the JSON that is read; our own files have eight at most


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk and rename it: readers see the old or the new, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may be as long as a name can be: the temporary one is not longer.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0))
        Path(temporary).chmod(0o666 & ~mask)  # mkstemp's files are private; ours are as any other
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def refuse_links(folder: Path, *names: str) -> None:
    """Raise if any of these folders in a folder that we write to is a link: what is written would end up elsewhere."""
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise HandfulError(f"{path} is a link, and files would be written to where it leads: remove it")


def flush_folder(folder: Path) -> None:
    """Flush to disk which names a folder holds: a rename lives there."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say which file is broken; NaN, infinities and endless nesting are as broken as no JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise HandfulError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise HandfulError(f"{path} is not valid JSON: the file is damaged") from error
    level = [content]
    for _ in range(DEEPEST):
        level = [value for entry in level if isinstance(entry, dict | list) for value in _inside(entry)]
    if level:
        raise HandfulError(f"{path} is nested more than {DEEPEST} levels deep: the file is damaged")
    return content


def read_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that should hold an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise HandfulError(f"{path} is not a JSON object: the file is damaged")
    return content


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number that a float can hold")
    return number


def _inside(entry: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return entry.values() if isinstance(entry, dict) else entry
