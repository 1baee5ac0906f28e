"""The result for other programs: as a download, or written into the folder of the studio."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
from starlette.responses import Response, StreamingResponse

from ..datasets.images import BrokenImage, printable
from ..labelling.book import FREE, NONE, Conflict
from ..labelling.export import (
    LABEL_STUDIO,
    TABLES,
    check_links,
    link_images,
    places,
    write_label_studio,
    write_predictions,
)
from ..labelling.label import EmbeddedImages, Fitted, Labelling
from ..labelling.prediction import Prediction
from ..publish import publishing
from .desk import Desk

DOWNLOADS = ("csv", "jsonl", "labels", "label-studio", "metadata", "folders", "yolo", "model")
WRITTEN = (*DOWNLOADS, "folders-link")
FOLDER = "export"  # in the folder of the studio
VALIDATION = 5  # one image in so many is for validation in YOLO's folders
BLOCK = 1 << 20
_FILES = {"csv": TABLES[0], "jsonl": TABLES[1], "label-studio": LABEL_STUDIO}
_KINDS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl", "label-studio": "application/json",
          "labels": "text/csv; charset=utf-8", "metadata": "text/csv; charset=utf-8",
          "model": "application/octet-stream"}  # fmt: skip


def download(desk: Desk, wanted: str, given: bool) -> Response:
    """The result in a format, as a file for the browser to keep."""
    if wanted in ("folders", "yolo"):
        found = labelling(desk, given)
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has been sent
        _zip(desk, _sorted_into(found, wanted), file)
        headers = {**_attachment(f"{wanted}.zip"), "Content-Length": str(file.seek(0, os.SEEK_END))}
        return StreamingResponse(_blocks(file), media_type="application/zip", headers=headers)
    name, content = _table(desk, wanted, given)
    return Response(content, headers={**_attachment(name), "Content-Type": _KINDS[wanted]})


def write(desk: Desk, wanted: str, given: bool) -> dict[str, Any]:
    """Write the result in a format to the folder of the studio; what an earlier export wrote there is replaced."""
    out = desk.out / FOLDER
    if wanted == "folders-link":
        check_links(desk.photos, out)
    found = None if wanted == "model" else labelling(desk, given)
    count = 0 if found is None else len(found.predictions)
    with publishing(out) as stage:
        if wanted == "folders-link" and found is not None:
            link_images(found, desk.images.files, stage)
            made = "images"
        elif wanted in ("folders", "yolo") and found is not None:
            made = "images" if wanted == "folders" else "yolo"
            for one, place in _sorted_into(found, wanted):
                path = stage / made / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_content(desk, one))
        else:
            made, content = _table(desk, wanted, given)
            (stage / made).write_bytes(content)
    return {"path": str(out / made), "images": count}


def labelling(desk: Desk, given: bool = False) -> Labelling:
    """The labels as ``handful label`` has them, by a model that has learned from all of them.

    Args:
        desk: with the images.
        given: leave out what was found and not given.
    """
    found = desk.learner.settled()
    with desk.lock:
        labels, classes = desk.book.plain[desk.images.ids], desk.book.classes
    names = {number: one.name for number, one in classes.items()} | {NONE: desk.book.none_label}
    if found is None:
        rows = np.flatnonzero((labels != FREE) & desk.embedded)
        kinds = sorted(set(labels[rows].tolist()))
        chances = (labels[rows][:, None] == np.array(kinds)).astype(np.float32)
        predictions = [
            Prediction(
                desk.images.names[row], names[int(labels[row])], 1.0, "", 1.0, bool(labels[row] == NONE), "given"
            )
            for row in rows
        ]
    else:
        kinds = [int(kind) for kind in found.model.classes_]
        chances, rows = np.array(found.model.label_distributions_), found.rows
        for place, kind in enumerate(kinds):  # also of labels that were accepted, which the model was not given
            mine = labels[rows] == kind
            chances[mine] = np.arange(len(kinds)) == place
        if given:
            kept = labels[rows] != FREE
            rows, chances = rows[kept], chances[kept]
        predictions = [
            Prediction(
                desk.images.names[row], names.get(int(found.best[row]), ""), float(found.chance[row]),
                names.get(int(found.second[row]), ""), float(found.none_score[row]), bool(found.is_none[row]),
                "given" if found.labels[row] != FREE else "predicted",
            )
            for row in rows
        ]  # fmt: skip
    if not predictions:
        raise Conflict("there is nothing to export yet: label some images first")
    model: Any = SimpleNamespace(label_distributions_=chances)
    images = EmbeddedImages([one.path for one in predictions], np.zeros((0, 1), np.float32), {}, desk.embedder, None)
    fitted = Fitted(images, None, None, labels, labels == NONE, model)  # type: ignore[arg-type]
    return Labelling(
        predictions, images.vectors, [names.get(kind, "") for kind in kinds], dict(desk.images.skipped),
        0.0 if found is None else found.threshold, [], None, {}, fitted=fitted,
    )  # fmt: skip


def _model(desk: Desk) -> bytes:
    """The classifier as a file for ``handful predict``, with names for classes and the threshold used here."""
    found = desk.learner.settled()
    if found is None:
        raise Conflict("there is no model yet: label images of two classes first")
    with desk.lock:
        names = {number: one.name for number, one in desk.book.classes.items()}
    model = copy(found.model)
    model.classes_ = np.array([names[int(kind)] for kind in found.model.classes_])
    model.none_threshold_, model.embedder_ = found.threshold, desk.origin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model.save(path)
        return path.read_bytes()


def _table(desk: Desk, wanted: str, given: bool) -> tuple[str, bytes]:
    """Name and content of a single file."""
    if wanted == "model":
        return "model.safetensors", _model(desk)
    if wanted == "labels":
        with desk.lock:
            labels, classes, none = desk.book.plain[desk.images.ids], desk.book.classes, desk.book.none_label
        rows = np.flatnonzero(labels != FREE)
        names = {number: one.name for number, one in classes.items()} | {NONE: none}
        pairs = [(desk.images.names[row], names[int(labels[row])]) for row in rows]
        return "labels.csv", _csv(("path", "label"), pairs)
    found = labelling(desk, given)
    if wanted == "metadata":
        none = desk.book.none_label
        return "metadata.csv", _csv(
            ("file_name", "label", "confidence", "source"),
            [(one.path, none if one.is_none else one.label, f"{one.confidence:.4f}", one.source)
             for one in found.predictions],
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if wanted == "label-studio":
            write_label_studio(found, desk.images.files, Path(folder))
        else:
            write_predictions(found, Path(folder))
        return _FILES[wanted], (Path(folder) / _FILES[wanted]).read_bytes()


def _csv(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(header)
    for path, *rest in rows:
        writer.writerow((path if path.isprintable() else printable(path), *rest))
    return buffer.getvalue().encode()


def _sorted_into(found: Labelling, wanted: str) -> Iterator[tuple[Prediction, str]]:
    """Each image and where it goes: a folder for each class, for YOLO below ``train`` or ``val``."""
    if wanted == "folders":
        yield from ((one, str(place)) for one, place in places(found.predictions))
        return
    for one, place in places([one for one in found.predictions if not one.is_none]):
        chance = hashlib.sha256(os.fsencode(one.path)).digest()[0]
        yield one, f"{'val' if chance % VALIDATION == 0 else 'train'}/{place}"


def _content(desk: Desk, one: Prediction) -> bytes:
    try:
        return desk.images.files.read(one.path)
    except BrokenImage as error:
        raise Conflict(f"cannot read {printable(one.path)}: {error}; nothing was exported") from error


def _zip(desk: Desk, sorted_into: Iterator[tuple[Prediction, str]], file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # images are compressed already
        for one, place in sorted_into:
            archive.writestr(zipfile.ZipInfo(printable(place)), _content(desk, one))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while block := file.read(BLOCK):
            yield block


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
