"""Files by path or by URL: local ones, and what fsspec opens (``s3://``, ``gs://``, ``https://``, ``memory://``)."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from ..errors import HandfulError
from .images import printable

NO_FSSPEC = "URLs are opened by fsspec, which is not installed: pip install 'handful[shards]'"


class Found(NamedTuple):
    """A file or folder: its size in bytes, and a text that changes when its content does."""

    folder: bool
    size: int
    stamp: str


def is_url(place: str) -> bool:
    return "://" in place


def last_name(place: str) -> str:
    """The name of a file without its folders."""
    return PurePosixPath(place.rstrip("/")).name if is_url(place) else Path(place).name


def look(place: str) -> Found:
    """What is at a path or URL.

    Raises:
        HandfulError: if nothing is there, or nobody can say.
    """
    if is_url(place):
        with_url, path = _file_system(place)
        try:
            about = with_url.info(path)
        except Exception as error:  # every service has its own
            raise HandfulError(f"cannot find {printable(place)}: {_reason(error)}") from error
        marks = [about.get(name) for name in ("size", "ETag", "etag", "mtime", "LastModified", "updated", "created")]
        size = int(about.get("size") or 0)
        return Found(about.get("type") == "directory", size, " ".join(map(str, marks)))
    try:
        found = Path(place).stat()
    except (OSError, ValueError) as error:
        raise HandfulError(f"no such file or folder: {printable(place)}") from error
    return Found(Path(place).is_dir(), found.st_size, f"{found.st_size} {found.st_mtime_ns}")


def opened(place: str) -> IO[bytes]:
    """A file for reading, that can be sought in."""
    if not is_url(place):
        return Path(place).open("rb")
    with_url, path = _file_system(place)
    try:
        return cast(IO[bytes], with_url.open(path, "rb"))
    except Exception as error:
        raise OSError(f"cannot open {printable(place)}: {_reason(error)}") from error


def listed(place: str) -> dict[str, str]:
    """Names of all files below a folder at a URL, from that folder on, with their stamps."""
    with_url, path = _file_system(place)
    try:
        found = with_url.find(path, detail=True)
    except Exception as error:
        raise HandfulError(f"cannot list {printable(place)}: {_reason(error)}") from error
    top = path.rstrip("/") + "/"
    return {
        name.removeprefix(top): f"{about.get('size')} {about.get('ETag') or about.get('mtime') or ''}"
        for name, about in sorted(found.items())
    }


def read_lines(place: str, most: int) -> list[str]:
    """The lines of a text file, without comments and blank ones."""
    with opened(place) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise HandfulError(f"{printable(place)} is a list of more than {most >> 20} MiB: divide it")
    try:
        lines = io.StringIO(content.decode("utf-8-sig")).read().splitlines()
    except UnicodeDecodeError as error:
        raise HandfulError(f"{printable(place)} is not a list in UTF-8, one source a line") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _file_system(place: str) -> tuple[Any, str]:
    try:
        core: Any = import_module("fsspec.core")
    except ImportError as error:
        raise HandfulError(NO_FSSPEC) from error
    try:
        system, path = core.url_to_fs(place)
    except Exception as error:  # no such protocol, or the package that speaks it is missing
        raise HandfulError(f"cannot open {printable(place)}: {_reason(error)}") from error
    return system, str(path)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return printable(lines[0])[:200] if lines else type(error).__name__
