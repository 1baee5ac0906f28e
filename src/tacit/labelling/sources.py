"""What a person has: a folder or archive of images, and the labels of a few of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..datasets.files import Files, is_image, open_files
from ..datasets.images import printable
from ..errors import TacitError

PATH_COLUMNS = ("path", "file_name", "filename", "file", "image")
UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
TABLES = ("labels.csv", "metadata.csv")  # read from the folder itself if no other is named


@dataclass(frozen=True)
class Collection:
    """Images and what is known of them.

    Attributes:
        files: where they are.
        names: of all images, with forward slashes, sorted.
        given: label by name; of the labelled ones.
        none: names of those known to belong to no class.
    """

    files: Files
    names: list[str]
    given: dict[str, str]
    none: frozenset[str]

    @property
    def classes(self) -> list[str]:
        return sorted(set(self.given.values()))


def collect(images: Path, labels: Path | None = None, none_label: str = "none-of-these") -> Collection:
    """Find the images in a folder or zip archive, and their labels in a table or in the names of their folders.

    Args:
        images: a folder, with folders in it, or a .zip archive.
        labels: a CSV file with a column ``path`` (or ``file_name``) and a column ``label``, which may be blank. Without
            it, ``labels.csv`` or ``metadata.csv`` among the images is read; and if there is none, each folder is a
            class, and images that lie loose or in ``unlabelled/`` have none.
        none_label: the label of images that belong to no class.

    Raises:
        TacitError: if there is nothing to do, or the labels contradict themselves or the images.
    """
    if not images.exists():
        raise TacitError(f"no such folder or archive: {images}")
    files = open_files(images)
    everything = files.under("")
    names = [name for name in everything if is_image(name)]
    if not names:
        raise TacitError(f"{images} holds no images (.jpg, .png, .webp, .bmp, .tif, .gif)")
    if labels is None:
        inside = next((name for name in TABLES if name in everything), None)
        given = _folder_labels(names) if inside is None else _read(_text(files.read(inside), inside), inside, names)
    else:
        given = _read(_text(_bytes(labels), str(labels)), str(labels), names, images)
    none = frozenset(name for name, label in given.items() if label == none_label)
    known = {name: label for name, label in given.items() if name not in none}
    for label in sorted(set(known.values())):
        _check_label(label)
    classes = sorted(set(known.values()))
    if len(classes) < 2:
        what = "no image is labelled" if not classes else f"all labelled images are of one class, '{classes[0]}'"
        raise TacitError(f"{what}: label some images of two classes or more, in a CSV file path,label (--labels)")
    return Collection(files, names, known, none)


def _folder_labels(names: list[str]) -> dict[str, str]:
    """Each folder at the top is a class, but for that of the unlabelled."""
    given = {}
    for name in names:
        top, slash, _ = name.partition("/")
        if slash and top.lower() not in UNLABELLED_FOLDERS:
            given[name] = top
    return given


def _read(text: str, table: str, names: list[str], root: Path | None = None) -> dict[str, str]:
    """Labels by name, from a table whose paths are relative to the images or, for one beside them, absolute."""
    there = set(names)
    given: dict[str, str] = {}
    for line, path, label in _rows(text, table):
        name = _relative(path, root)
        if name not in there:
            raise TacitError(f"{table}, line {line}: there is no image '{printable(path)}' among the images")
        if not label:
            continue
        if given.setdefault(name, label) != label:
            raise TacitError(
                f"{table}, line {line}: '{printable(path)}' is labelled '{printable(label)}' here and "
                f"'{printable(given[name])}' further up: keep one of them"
            )
    return given


def _rows(text: str, table: str) -> Iterator[tuple[int, str, str]]:
    """(line, path, label) of a table with a header."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = [name.strip().lower() for name in next(reader, [])]
        column = next((header.index(name) for name in PATH_COLUMNS if name in header), None)
        if column is None or "label" not in header:
            raise TacitError(
                f"{table} should start with a line that names its columns, path,label (or file_name,label), got: "
                f"{printable(','.join(header))[:80]}"
            )
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            cells = [*row, *[""] * len(header)]
            yield reader.line_num, cells[column].strip(), cells[header.index("label")].strip()
    except csv.Error as error:
        raise TacitError(f"{table}, line {reader.line_num}: not a CSV file: {error}") from error


def _relative(path: str, root: Path | None) -> str:
    """As the listing names it: forward slashes, from the top of the images."""
    name = path.replace("\\", "/").removeprefix("./")
    if root is not None and Path(path).is_absolute() and Path(path).is_relative_to(root.resolve()):
        return Path(path).relative_to(root.resolve()).as_posix()
    return name


def _check_label(label: str) -> None:
    parts = PurePosixPath(label.replace("\\", "/")).parts
    if len(parts) != 1 or parts[0] in (".", "..", "/") or not label.isprintable() or len(label.encode()) > 200:
        raise TacitError(
            f"the label '{printable(label)[:60]}' cannot be a class's name, which may be that of a folder: no slashes, "
            "no control characters, at most 200 bytes"
        )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TacitError(f"cannot read the labels in {path}: {error.strerror}") from error


def _text(content: bytes, table: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TacitError(f"{table} is not text in UTF-8: save it as 'CSV UTF-8'") from error
