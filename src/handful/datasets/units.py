"""Very many images, wherever they are: folders, zips, tar shards, Parquet and Arrow files, and lists of such.

A source is divided into *units*, which can be read apart from each other, by other threads or machines. The key of a
unit names all that it holds: names, sizes and times. So what was done with a unit need not be done again, and where one
image of a folder is added or changed, only the unit that it is in becomes another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from .arrow import ENDINGS, arrow_items, row_groups
from .base import Item
from .files import Archive, Folder, is_clutter, is_image
from .images import MOST_BYTES, BrokenImage, printable
from .remote import Found, is_url, last_name, listed, look, opened, read_lines
from .stream_items import Damaged
from .tar_stream import tar_items
from .tars import tar_kind

UNIT = 2048  # images of a unit, about
MOST_LIST = 1 << 30  # bytes of a text file of sources
USUAL_BYTES = 100_000  # of an image in an archive whose images nobody has counted yet
SAMPLE = 16  # images that such a guess is made from
LISTERS = 16  # sources that are looked at together: they may be far away


@dataclass(frozen=True)
class Unit:
    """A part of a source.

    Attributes:
        kind: folder, files, zip, tar or table.
        source: its path or URL, as it was given; of files, the list that names them, or "".
        number: its place among the units of the source.
        key: a hash of all that it holds; the same key, the same images.
        names: of its images, for a folder, files and a zip.
        span: first row group, the one after the last, and the number of the first row: for a table.
        images: how many there are, or None if nobody knows before they were read.
        size: bytes of the source, for a tar archive.
    """

    kind: str
    source: str
    number: int
    key: str
    names: tuple[str, ...] = ()
    span: tuple[int, int, int] = (0, 0, 0)
    images: int | None = None
    size: int = 0

    @property
    def slug(self) -> str:
        """The source in a few letters that any file system takes, and no two sources share."""
        plain = re.sub(r"[^\w-]+", "-", last_name(self.source), flags=re.ASCII).strip("-")[:40]
        return f"{plain or 'images'}-{hashlib.sha256(self.source.encode(errors='surrogatepass')).hexdigest()[:8]}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Unit:
        content = json.loads(text)
        return cls(**content | {"names": tuple(content["names"]), "span": tuple(content["span"])})


@dataclass
class Plan:
    """The units of all sources; what is wrong with a source, in a sentence; and what was not looked into."""

    units: list[Unit] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    bytes_per_image: int = USUAL_BYTES  # in archives whose images nobody has counted

    @property
    def images(self) -> int:
        """How many images there are; a guess where nobody counted them."""
        guesses = (
            max(1, unit.size // self.bytes_per_image) if unit.images is None else unit.images for unit in self.units
        )
        return sum(guesses)


def plan(sources: Sequence[str], size: int = UNIT) -> Plan:
    """Divide sources into units of about ``size`` images. A source that cannot be read is a problem, not an error.

    Raises:
        HandfulError: if there is nothing to do at all.
    """
    found = Plan()
    named = list(dict.fromkeys(_expanded(sources, found)))
    places = [place for place, _ in named if not is_image(place) or Path(place).is_dir()]
    single: dict[str, list[str]] = {}  # images by the list that they are in
    for place, inside in named:
        if is_image(place) and not Path(place).is_dir():
            single.setdefault(inside, []).append(place)
    with ThreadPoolExecutor(LISTERS) as pool:
        for inside, images in single.items():
            stamps = dict(zip(images, pool.map(_stamp, images), strict=True))
            found.units += _divided("files", inside, stamps, size)
        for place, units in zip(places, pool.map(partial(_units, size=size, found=found), places), strict=True):
            if isinstance(units, str):
                found.problems[place] = units
            else:
                found.units += units
    if not found.units:
        raise HandfulError(next(iter(found.problems.values()), "there is no source: give a folder or an archive"))
    found.bytes_per_image = _bytes_per_image(found.units)
    return found


def _bytes_per_image(units: list[Unit]) -> int:
    """Of the first images of the first tar archive, if there is one: for the time left."""
    first = next((unit for unit in units if unit.kind == "tar"), None)
    try:
        sizes = [len(item.read()) + 1024 for item in islice(unit_items(first), SAMPLE)] if first else []  # and a header
    except (OSError, HandfulError, BrokenImage):
        return USUAL_BYTES
    return max(1, sum(sizes) // len(sizes)) if sizes else USUAL_BYTES


def unit_items(unit: Unit, skip: int = 0) -> Iterator[Item]:
    """The images of a unit in their order, but the first ``skip``.

    Raises:
        Damaged: after the images before a place from which on nothing can be read.
        OSError: if the source is out of reach for now.
    """
    if unit.kind == "tar":
        return tar_items(unit.source, unit.size, skip)
    if unit.kind == "table":
        start, stop, first = unit.span
        return arrow_items(unit.source, start, stop if stop >= 0 else None, first, skip)
    return _named(unit, unit.names[skip:])


def _named(unit: Unit, names: Iterable[str]) -> Iterator[Item]:
    if unit.kind == "zip":
        archive = _archive(unit.source, look(unit.source).stamp)
        missing = next((name for name in names if name not in archive.members), None)
        if missing is not None:
            raise OSError(f"{printable(unit.source)} was changed since it was listed: run the command again")
        read: Any = archive.read
    elif unit.kind == "files":
        read = _read_file
    elif is_url(unit.source):
        read = partial(_read_url, unit.source.rstrip("/"))
    else:
        read = Folder(Path(unit.source)).read
    return (Item(name, 0, partial(read, name)) for name in names)


def _read_file(name: str) -> bytes:
    return _read_url("", name) if is_url(name) else Folder(Path()).read(name)


def _read_url(top: str, name: str) -> bytes:
    with opened(f"{top}/{name}" if top else name) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BrokenImage(f"more than {MOST_BYTES >> 20} MiB")
    return content


@lru_cache(maxsize=4)
def _archive(place: str, stamp: str) -> Archive:
    """Opened once for all units that are read here."""
    return Archive(Path(last_name(place)), unwrap=True, file=opened(place))


def _expanded(sources: Iterable[str], found: Plan, inside: str = "") -> Iterator[tuple[str, str]]:
    """Sources, lists replaced by what they list, relative to where they are; each with the list that it is in."""
    for given in sources:
        place = given if not inside or is_url(given) or Path(given).is_absolute() else _beside(inside, given)
        if not is_url(place) and (not is_image(place) or Path(place).is_dir()):
            place = os.path.abspath(place)  # noqa: PTH100 - the same from wherever it is named; links stay what they are
        if place.lower().endswith((".txt", ".lst")):
            if inside:
                found.problems[place] = f"{printable(inside)} lists another list: name {printable(given)} by itself"
                continue
            try:
                yield from _expanded(read_lines(place, MOST_LIST), found, place)
            except (HandfulError, OSError) as error:
                found.problems[place] = str(error) if isinstance(error, HandfulError) else _unreadable(place, error)
        else:
            yield place, inside


def _beside(file: str, name: str) -> str:
    return f"{file.rpartition('/')[0]}/{name}" if is_url(file) else str(Path(file).parent / name)


def _units(place: str, size: int, found: Plan) -> list[Unit] | str:
    """The units of a source, or what is wrong with it."""
    try:
        there = look(place)
        if there.folder:
            return _folder(place, size, found)
        return _file(place, there, size)
    except OSError as error:
        return _unreadable(place, error)
    except HandfulError as error:
        return str(error)


def _file(place: str, there: Found, size: int) -> list[Unit]:
    if place.lower().endswith(".zip"):
        archive = _archive(place, there.stamp)
        stamps = {
            name: f"{archive.members[name].file_size} {archive.members[name].CRC}"
            for name in archive.under("") if is_image(name)
        }  # fmt: skip
        return _divided("zip", place, stamps, size)
    whole = hashlib.sha256(f"{place} {there.stamp}".encode(errors="surrogatepass")).hexdigest()
    if tar_kind(Path(last_name(place))) is not None:
        return [Unit("tar", place, 0, whole, size=there.size)]
    if place.lower().endswith(ENDINGS):
        return _tables(place, whole, row_groups(place), size)
    raise HandfulError(
        f"{printable(place)} is no source of images: give a folder, .zip, .tar, .parquet, .arrow, an image, or a .txt "
        "list of such"
    )


def _tables(place: str, whole: str, rows: list[int], size: int) -> list[Unit]:
    """Units of row groups that lie together; a stream, whose rows nobody has counted, is one."""
    units: list[Unit] = []
    start = first = seen = 0
    for number, count in enumerate(rows):
        seen += count
        if seen < 0:
            return [Unit("table", place, 0, whole, span=(0, -1, 0), size=look(place).size)]
        if seen >= size or number == len(rows) - 1:
            key = hashlib.sha256(f"{whole} {start} {number + 1}".encode()).hexdigest()
            units.append(Unit("table", place, len(units), key, span=(start, number + 1, first), images=seen))
            start, first, seen = number + 1, first + seen, 0
    return units


def _folder(place: str, size: int, found: Plan) -> list[Unit]:
    """The images of a folder; if there are none, the archives and tables in it."""
    if is_url(place):
        stamps = {name: stamp for name, stamp in listed(place).items() if not is_clutter(name)}
    else:
        skipped: dict[str, str] = {}
        names = Folder(Path(place)).under("", skipped)
        found.skipped |= {f"{place}/{name}": reason for name, reason in skipped.items()}
        stamps = {name: _stamp(f"{place}/{name}") if is_image(name) else "" for name in names}
    images = {name: stamp for name, stamp in stamps.items() if is_image(name)}
    if images:
        return _divided("folder", place, images, size)
    units: list[Unit] = []
    for name in stamps:
        if name.lower().endswith((".zip", *ENDINGS)) or tar_kind(Path(name)) is not None:
            inner = f"{place.rstrip('/')}/{name}"
            more = _units(inner, size, found)
            if isinstance(more, str):
                found.problems[inner] = more
            else:
                units += more
    if not units:
        raise HandfulError(f"{printable(place)} holds neither images nor archives or tables of images")
    return units


def _stamp(path: str) -> str:
    try:
        if is_url(path):
            return look(path).stamp
        found = os.stat(path)  # noqa: PTH116 - a path each takes ten times as long, of 100,000
    except (OSError, HandfulError) as error:  # whoever reads it will say so
        return f"unreadable {error}"
    return f"{found.st_size} {found.st_mtime_ns}"


def _divided(kind: str, place: str, stamps: dict[str, str], size: int) -> list[Unit]:
    """Units of names that lie together.

    A name itself says whether a unit ends with it, so that one name more or less changes one unit, and not all that
    follow.
    """
    if not stamps:
        raise HandfulError(f"{printable(place)} holds no images")
    units: list[Unit] = []
    names: list[str] = []
    for number, name in enumerate(stamps, 1):
        names.append(name)
        ends = len(names) * 2 >= size and zlib.crc32(name.encode(errors="surrogatepass")) % max(1, size // 2) == 0
        if ends or len(names) >= 2 * size or number == len(stamps):
            about = json.dumps([kind, place, [(one, stamps[one]) for one in names]])
            key = hashlib.sha256(about.encode()).hexdigest()
            units.append(Unit(kind, place, len(units), key, tuple(names), images=len(names)))
            names = []
    return units


def _unreadable(place: str, error: OSError) -> str:
    return f"cannot read {printable(place)}: {error.strerror or printable(str(error))}"


__all__ = ["UNIT", "Damaged", "Plan", "Unit", "plan", "unit_items"]
