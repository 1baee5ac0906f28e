"""The result files of ``handful label``: tables, files for other tools, folders of images."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ..datasets.files import Files
from ..datasets.images import BrokenImage, printable
from ..errors import HandfulError
from ..reports.page import csv_bytes
from .label import Labelling
from .prediction import COLUMNS, Prediction, as_row

NONE_FOLDER = "none-of-these"
EXPORT = "images"  # the folder that is exported to
TABLES = ("predictions.csv", "predictions.jsonl")
LABEL_STUDIO = "label-studio.json"
MOST_COLUMNS = 100  # classes whose probabilities have a column each in the CSV file; the JSON lines have all
LONGEST = 200  # bytes of an exported name: systems allow 255, and other programs may want to add to it
# What Windows does not take for a name, whatever comes behind the dot.
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_UNFIT = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')


def write_predictions(found: Labelling, out: Path) -> None:
    """``predictions.csv`` and ``predictions.jsonl``: one line per image, with the probability of every class.

    The CSV file is safe to open in a spreadsheet (see :func:`csv_bytes`); the JSON lines have every name as it is.
    """
    chances = found.probabilities
    (out / TABLES[0]).write_bytes(csv_part(found.predictions, chances, found.classes))
    with (out / TABLES[1]).open("wb") as file:
        file.writelines(json_lines(found.predictions, chances, found.classes))


def csv_part(
    predictions: Sequence[Prediction], chances: NDArray[Any], classes: Sequence[str], *, header: bool = True
) -> bytes:
    """Lines of ``predictions.csv``: predictions with their probabilities (predictions, classes)."""
    shown = classes if len(classes) <= MOST_COLUMNS else []
    rows = [as_row(one) | {f"p:{name}": round(float(line[k]), 4) for k, name in enumerate(shown)}
            for one, line in zip(predictions, chances, strict=True)]  # fmt: skip
    return csv_bytes(rows, [*COLUMNS, *(f"p:{name}" for name in shown)], header=header)


def json_lines(predictions: Sequence[Prediction], chances: NDArray[Any], classes: Sequence[str]) -> Iterator[bytes]:
    """Lines of ``predictions.jsonl``, the most probable classes first."""
    for one, line in zip(predictions, chances, strict=True):
        likely = [(classes[k], round(float(line[k]), 4)) for k in np.argsort(-line, kind="stable")]
        yield _json_line(as_row(one) | {"probabilities": {name: value for name, value in likely if value > 0}})


def _json_line(row: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8, which only an escape can say
        return (json.dumps(row) + "\n").encode()


def write_label_studio(found: Labelling, files: Files, out: Path) -> None:
    """``label-studio.json``: tasks for a project with one Choices called ``label``, with predicted labels.

    The images' paths are those below the folder that Label Studio serves as local files.
    """
    tasks = [_task(one) for one in found.predictions]
    (out / LABEL_STUDIO).write_text(json.dumps(tasks, indent=1) + "\n", encoding="ascii")


def _task(one: Prediction) -> dict[str, Any]:
    choice = {
        "from_name": "label", "to_name": "image", "type": "choices",
        "value": {"choices": [NONE_FOLDER if one.is_none else one.label]},
    }  # fmt: skip
    address = f"/data/local-files/?d={quote(os.fsencode(one.path))}"
    task: dict[str, Any] = {"data": {"image": address, **as_row(one)}}
    if one.source == "given":
        task["annotations"] = [{"result": [choice]}]
    else:
        task["predictions"] = [{"model_version": "handful", "score": round(one.confidence, 4), "result": [choice]}]
    return task


def check_copies(images: Path, out: Path) -> None:
    """Check, before the long work, that the images can be sorted into folders."""
    if images.resolve().is_relative_to((out / EXPORT).resolve()):
        raise HandfulError(f"{images} is where the images would be exported to: choose another --out")


def check_links(images: Path, out: Path) -> None:
    """The same for links, which need an image to point to."""
    if not images.is_dir():
        raise HandfulError(f"images in an archive cannot be linked to: use --export-folders copy ({images})")
    check_copies(images, out)


def copy_images(found: Labelling, files: Files, out: Path) -> None:
    """``images/<label>/...``: a copy of each image."""
    for one, path in _places(found, out):
        try:
            content = files.read(one.path)
        except BrokenImage as error:
            raise HandfulError(f"cannot copy {printable(one.path)}: {error}; nothing was changed") from error
        path.write_bytes(content)


def link_images(found: Labelling, files: Files, out: Path) -> None:
    """``images/<label>/...``: a link to each image; the images themselves stay where they are."""
    for one, path in _places(found, out):
        _link((files.path / one.path).resolve(), path)


def _places(found: Labelling, out: Path) -> Iterator[tuple[Prediction, Path]]:
    """Where each image goes, in folders that are there."""
    for one, place in places(found.predictions):
        path = out / EXPORT / place
        path.parent.mkdir(parents=True, exist_ok=True)
        yield one, path


def places(predictions: Sequence[Prediction]) -> Iterator[tuple[Prediction, PurePosixPath]]:
    """Where each image goes if each class has a folder, in names that every system can have."""
    folders = folder_names(one.label for one in predictions)
    taken: set[str] = set()
    for one in predictions:
        folder = NONE_FOLDER if one.is_none else folders[one.label]
        yield one, PurePosixPath(folder, _unique(_flat_name(one.path), taken, f"{folder}/"))


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder for each label that every system can have, and no two labels the same, whatever their capitals.

    >>> folder_names(["cat", "Cat", "nul", "cat.", "none-of-these"])
    {'cat': 'cat', 'none-of-these': 'none-of-these~2', 'Cat': 'Cat~2', 'cat.': 'cat~3', 'nul': 'nul_'}
    """
    taken = {_same(NONE_FOLDER)}
    # Those that can keep their name come first, small letters before capitals.
    ordered = sorted(set(labels), key=lambda label: (_fit(label) != label, label.swapcase()))
    return {label: _unique(_fit(label), taken) for label in ordered}


def _flat_name(path: str) -> str:
    """The path as one name, so that images of the same name from two folders do not meet."""
    name = _fit("__".join(PurePosixPath(path).parts))
    if len(os.fsencode(name)) <= LONGEST:
        return name
    end = PurePosixPath(name).suffix
    mark = f"~{hashlib.sha256(os.fsencode(path)).hexdigest()[:10]}{end}"
    start = name.removesuffix(end)[:LONGEST]
    while len(os.fsencode(start + mark)) > LONGEST:
        start = start[:-1]
    return start + mark


def _fit(name: str) -> str:
    """A name as all systems take it."""
    fit = _UNFIT.sub("_", name).rstrip(". ")
    if not fit or fit[0] == ".":
        fit = f"_{fit}"
    if _RESERVED.fullmatch(fit):
        stem, dot, rest = fit.partition(".")
        fit = f"{stem}_{dot}{rest}"
    return fit


def _unique(name: str, taken: set[str], folder: str = "") -> str:
    """The name, numbered if another has it already in this folder."""
    stem, end = name, ""
    if folder:
        end = PurePosixPath(name).suffix
        stem = name.removesuffix(end)
    found, number = name, 2
    while (key := folder + _same(found)) in taken:
        found, number = f"{stem}~{number}{end}", number + 1
    taken.add(key)
    return found


def _same(name: str) -> str:
    """What two names have in common that some system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _link(target: Path, path: Path) -> None:
    """A symbolic link, or a hard one where the system does not let users make them."""
    try:
        path.symlink_to(target)
    except OSError:
        try:
            os.link(target, path)
        except OSError as error:
            raise HandfulError(f"cannot link to {target} ({error.strerror}): use --export-folders copy") from error


@dataclass(frozen=True)
class Exporter:
    """A form in which the labels are written for another program.

    Attributes:
        write: writes it to a folder, from what was found and the files that the images are in.
        files, folders: names of what it makes there.
        check: raises before the long work if it cannot be made of these images in this folder.
    """

    write: Callable[[Labelling, Files, Path], None]
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    check: Callable[[Path, Path], None] | None = None


# ``handful label --export NAME``
EXPORTERS: dict[str, Exporter] = {
    "label-studio": Exporter(write_label_studio, files=(LABEL_STUDIO,)),
    "folders-copy": Exporter(copy_images, folders=(EXPORT,), check=check_copies),
    "folders-link": Exporter(link_images, folders=(EXPORT,), check=check_links),
}


def exporters(names: Iterable[str]) -> list[Exporter]:
    """The exporters of these names, each once; two that make the same cannot both be wanted."""
    found = {}
    for name in names:
        if name not in EXPORTERS:
            raise HandfulError(f"--export takes {', '.join(EXPORTERS)}, got '{name}'")
        found[name] = EXPORTERS[name]
    made = [name for one in found.values() for name in (*one.files, *one.folders)]
    if twice := {name for name in made if made.count(name) > 1}:
        raise HandfulError(f"two exports would both write {min(twice)}: choose one of {', '.join(found)}")
    return list(found.values())
