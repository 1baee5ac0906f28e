"""The user's input: a folder or archive of images, and the labels of a few of them."""

from __future__ import annotations

import csv
import io
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..datasets.files import Files, find_images, is_image, open_files
from ..datasets.images import BrokenImage, printable
from ..errors import HandfulError
from ..reports.page import from_cell

PATH_COLUMNS = ("path", "file_name", "filename", "file", "image")
UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
TABLES = ("labels.csv", "metadata.csv")  # read from the folder itself if no other is named
PREDICTED = ("none_score", "is_none", "source")  # columns that a predictions.csv of ours has beside path and label
SEPARATORS = (",", ";", "\t")  # Excel writes the second where a comma is for decimals
MOST_LETTERS = 1 << 20  # of a line of a table
LEAST_LETTERS = 4  # of a label from which on one letter more or less may be a slip
MOST_ALIKE = 8  # labels of one form: more are numbered or lettered on purpose


@dataclass(frozen=True)
class Collection:
    """Images and the labels that are given for them.

    Attributes:
        files: where they are.
        names: of all images, with forward slashes, sorted.
        given: name -> label, for the labelled images.
        none: names of those known to belong to no class.
        skipped: folders whose images are not among them, with the reason.
        none_label: the label of images that belong to no class.
    """

    files: Files
    names: list[str]
    given: dict[str, str]
    none: frozenset[str]
    skipped: dict[str, str] = field(default_factory=dict)
    none_label: str = "none-of-these"

    @property
    def classes(self) -> list[str]:
        return sorted(set(self.given.values()))

    def relabelled(self, changes: Mapping[str, str]) -> Collection:
        """The same images with other labels, name -> label; "" takes a label away."""
        there = set(self.names)
        for name in changes:
            if name not in there:
                raise HandfulError(f"there is no image '{_short(name)}' among the images: give a path of a prediction")
        former = {**self.given, **dict.fromkeys(self.none, self.none_label)}
        labels = {name: label for name, label in {**former, **changes}.items() if label}
        given, none = _divided(labels, self.none_label)
        return replace(self, given=given, none=none)


def collect(images: Path, labels: Path | None = None, none_label: str = "none-of-these") -> Collection:
    """Find the images in a folder or zip archive, and their labels in a table or in the names of their folders.

    Args:
        images: a folder, with folders in it, or a .zip archive; an archive of a single folder is that folder.
        labels: a CSV file with a column ``path`` (or ``file_name``) and a column ``label``, which may be blank. Without
            it, ``labels.csv`` or ``metadata.csv`` among the images is read; and if there is none, each folder is a
            class, and images outside of folders or in ``unlabelled/`` have no label.
        none_label: the label of images that belong to no class.

    Raises:
        HandfulError: if there is nothing to do, or the labels contradict themselves or the images.
    """
    found = find_images(images)
    files, names = found.files, found.names
    inside = next((name for name in TABLES if name in found.others), None)
    if labels is None and inside is None:
        given = _folder_labels(names)
    else:
        with _opened(files, str(inside)) if labels is None else _opened_file(labels) as file:
            given = _read(file, str(labels or inside), files, names)
    known, none = _divided(given, none_label)
    return Collection(files, names, known, none, found.skipped, none_label)


def _divided(given: dict[str, str], none_label: str) -> tuple[dict[str, str], frozenset[str]]:
    """The labels of images that are of a class, checked; and the names of those that are of none."""
    none = frozenset(name for name, label in given.items() if label == none_label)
    known = {name: label for name, label in given.items() if name not in none}
    classes = sorted(set(known.values()))
    for label in classes:
        check_label(label)
    if len(classes) < 2:
        what = "no image is labelled" if not classes else f"all labelled images are of one class, '{classes[0]}'"
        raise HandfulError(f"{what}: label some images of two classes or more, in a CSV file path,label (--labels)")
    return known, none


def read_labels(images: Path, table: Path) -> dict[str, str]:
    """The labels in a CSV file ``path,label``, by the names of the images in a folder or archive."""
    files = open_files(images)
    names = [name for name in files.under("") if is_image(name)]
    with _opened_file(table) as file:
        return _read(file, str(table), files, names)


def look_alike(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of labels that may be one class: they differ in case, spaces or punctuation only, or by one letter.

    >>> look_alike(["Dress", "dres", "dress", "shirt", "shoe 1", "shoe 2"])
    [('Dress', 'dres'), ('Dress', 'dress'), ('dres', 'dress')]
    """
    by_form: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        plain = "".join(letter for letter in unicodedata.normalize("NFKC", label).casefold() if letter.isalnum())
        for form in {plain, *_with_a_gap(plain)}:
            by_form.setdefault(form, []).append(label)
    pairs = {pair for alike in by_form.values() if len(alike) <= MOST_ALIKE for pair in combinations(alike, 2)}
    return sorted(pairs)


def _with_a_gap(word: str) -> Iterator[str]:
    """The word without one of its letters: two words that share such a form differ by one letter. Digits tell apart."""
    if len(word) < LEAST_LETTERS:
        return
    for place, letter in enumerate(word):
        if letter.isalpha():
            yield word[:place] + word[place + 1 :]
            yield f"{word[:place]}_{word[place + 1 :]}"


def _folder_labels(names: list[str]) -> dict[str, str]:
    """Each folder at the top is a class, except ``unlabelled/``."""
    given = {}
    for name in names:
        top, slash, _ = name.partition("/")
        if slash and top.lower() not in UNLABELLED_FOLDERS:
            given[name] = top
    return given


def _read(file: BinaryIO, table: str, files: Files, names: list[str]) -> dict[str, str]:
    """Labels by name, from a table, which may be long: it is read line by line."""
    given: dict[str, str] = {}
    find = _finder(files, names)
    for line, path, label in _rows(file, table):
        found = find(path)
        if not found:
            raise HandfulError(f"{table}, line {line}: there is no image '{_short(path.strip())}' among the images")
        if len(found) > 1:
            inner = f"{files.top}/"  # whole, these names cannot be taken for others
            both = " or ".join(f"'{printable(inner + name if name.startswith(inner) else name)}'" for name in found[:2])
            raise HandfulError(f"{table}, line {line}: '{_short(path)}' may be two images: write {both}")
        if not label:
            continue
        if given.setdefault(found[0], label) != label:
            raise HandfulError(
                f"{table}, line {line}: '{_short(path)}' is labelled '{_short(label)}' here and "
                f"'{_short(given[found[0]])}' further up: keep one of them"
            )
    return given


def _rows(file: BinaryIO, table: str) -> Iterator[tuple[int, str, str]]:
    """(line, path, label) of a table with a header."""
    lines, line = _lines(file, table), 0
    try:
        first = next(lines, "")
        separator = next((one for one in SEPARATORS if _columns(_header(first, one))), ",")
        header = _header(first, separator)
        columns = _columns(header)
        if columns is None:
            raise HandfulError(
                f"{table} should start with a line that names its columns, path,label (or file_name,label), got: "
                f"{_short(','.join(header))}"
            )
        path, label = columns
        for name in (header[path], header[label]):
            if header.count(name) > 1:
                raise HandfulError(f"{table} has more than one column '{name}': keep one of them")
        ours = set(PREDICTED) <= set(header)
        reader, line = csv.reader(lines, delimiter=separator, strict=True), 1
        for row in reader:
            line = 1 + reader.line_num
            if not any(cell.strip() for cell in row):
                continue
            if any(cell.strip() for cell in row[len(header) :]):
                raise HandfulError(
                    f"{table}, line {line}: {len(row)} cells, but there are {len(header)} columns: put what has a "
                    f"'{separator}' in it into quotes"
                )
            cells = [*row, *[""] * len(header)]
            if ours:
                cells = [*map(from_cell, cells)]
            yield line, cells[path], cells[label].strip()
    except csv.Error as error:
        raise HandfulError(f"{table}, line {line + 1}: not a CSV file: {error}") from error


def _header(line: str, separator: str) -> list[str]:
    return [name.strip().lower() for name in next(csv.reader([line], delimiter=separator, strict=True), [])]


def _columns(header: list[str]) -> tuple[int, int] | None:
    """Which columns have the path and the label."""
    path = next((header.index(name) for name in PATH_COLUMNS if name in header), None)
    return None if path is None or "label" not in header else (path, header.index("label"))


def _lines(file: BinaryIO, table: str) -> Iterator[str]:
    """The lines of a text, one at a time; a line that is too long is an error."""
    text, number = io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), 0
    try:
        while line := text.readline(MOST_LETTERS):
            number += 1
            if "\0" in line:
                raise HandfulError(f"{table}, line {number}: not text, it has NUL bytes: save it as 'CSV UTF-8'")
            if len(line) == MOST_LETTERS:
                raise HandfulError(f"{table}, line {number}: more than {MOST_LETTERS - 1:,} letters: is it a table?")
            yield line
    except UnicodeDecodeError as error:
        raise HandfulError(f"{table} is not text in UTF-8: save it as 'CSV UTF-8'") from error
    except OSError as error:
        raise HandfulError(f"cannot read the labels in {table}: {error.strerror}") from error


def _finder(files: Files, names: list[str]) -> Callable[[str], list[str]]:
    r"""Return a function from a path as a user writes it to the names of the images that it may refer to.

    People write paths with backslashes, absolute ones, in another Unicode normal form, from the folder around all
    images in an archive, or as they stand in ``predictions.csv`` and on the screen: ``caf\udce9.jpg``.
    """
    there, spelled = set(names), dict[str, list[str]]()
    roots = [f"{path.as_posix()}/" for path in (files.path.absolute(), files.path.resolve())]

    def find(path: str) -> list[str]:
        for name in (path, path.strip(), path.strip().replace("\\", "/").removeprefix("./")):
            if name in there and not (files.top and name.startswith(f"{files.top}/")):
                return [name]
        if not spelled:  # takes a while, and most tables need nothing of it
            for one in names:
                whole = [one, f"{files.top}/{one}"] if files.top else [one]
                for way in {spell(name) for name in whole for spell in (_plain, printable)}:
                    spelled.setdefault(way, []).append(one)
        for root in roots:
            name = name.removeprefix(root)
        return spelled.get(_plain(path.strip())) or spelled.get(_plain(name), [])

    return find


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name.encode("utf-8", "backslashreplace").decode())


def check_label(label: str) -> None:
    parts = PurePosixPath(label.replace("\\", "/")).parts
    if len(parts) != 1 or parts[0] in (".", "..", "/") or not label.isprintable() or len(label.encode()) > 200:
        raise HandfulError(
            f"the label '{_short(label)}' cannot be a class's name, which may be that of a folder: no slashes, "
            "no control characters, nothing that is no text, at most 200 bytes"
        )


def _short(words: str) -> str:
    return printable(words[:80]) + ("..." if len(words) > 80 else "")


def _opened(files: Files, table: str) -> BinaryIO:
    """A table among the images, open."""
    if files.path.is_dir():
        return _opened_file(files.path / table)
    try:
        return io.BytesIO(files.read(table))
    except BrokenImage as error:
        raise HandfulError(f"cannot read {table} in {files.path}: {error}; give another with --labels") from error


def _opened_file(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise HandfulError(f"the labels {path} are not a file but a folder, a pipe or a device: give a CSV file")
        return path.open("rb")
    except OSError as error:
        raise HandfulError(f"cannot read the labels in {path}: {error.strerror}") from error
