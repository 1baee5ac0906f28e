"""What ``tacit label`` leaves on disk: tables, files for other tools, folders of images; nothing outside OUT."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..checkpoint import write_atomic
from ..datasets.files import Files
from ..errors import TacitError
from ..experiments.report import csv_bytes
from .label import Labelling, Prediction, as_row

NONE_FOLDER = "none-of-these"
EXPORTS = ("copy", "link")


def write_predictions(found: Labelling, out: Path) -> None:
    """``predictions.csv`` and ``predictions.jsonl``: one line per image."""
    rows = [as_row(one) for one in found.predictions]
    write_atomic(out / "predictions.csv", csv_bytes(rows))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(out / "predictions.jsonl", lines.encode("utf-8", "surrogatepass"))


def write_label_studio(found: Labelling, out: Path) -> None:
    """``label-studio.json``: tasks for a project with one Choices called ``label``; found labels are predictions.

    The images' paths are those below the folder that Label Studio serves as local files.
    """
    tasks = [_task(one) for one in found.predictions]
    write_atomic(out / "label-studio.json", (json.dumps(tasks, indent=1, ensure_ascii=False) + "\n").encode())


def _task(one: Prediction) -> dict[str, Any]:
    choice = {
        "from_name": "label", "to_name": "image", "type": "choices",
        "value": {"choices": [NONE_FOLDER if one.is_none else one.label]},
    }  # fmt: skip
    task: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={one.path}", **as_row(one)}}
    if one.source == "given":
        task["annotations"] = [{"result": [choice]}]
    else:
        task["predictions"] = [{"model_version": "tacit", "score": round(one.confidence, 4), "result": [choice]}]
    return task


def export_folders(found: Labelling, files: Files, out: Path, how: str) -> None:
    """``OUT/images/<label>/...``: a copy of each image, or a link to it; the images themselves stay where they are."""
    if how not in EXPORTS:
        raise TacitError(f"--export-folders takes {' or '.join(EXPORTS)}, got '{how}'")
    if how == "link" and not files.path.is_dir():
        raise TacitError(f"images in an archive cannot be linked to: use --export-folders copy ({files.path})")
    top = out / "images"
    for one in found.predictions:
        folder = top / (NONE_FOLDER if one.is_none else one.label)
        # Names are flattened, so that images of the same name from two folders do not meet.
        path = folder / "__".join(PurePosixPath(one.path).parts)
        folder.mkdir(parents=True, exist_ok=True)
        if how == "copy":
            write_atomic(path, files.read(one.path))
        else:
            _link((files.path / one.path).resolve(), path)


def _link(target: Path, path: Path) -> None:
    """A symbolic link, or a hard one where the system does not let users make them."""
    with suppress(FileNotFoundError):
        path.unlink()
    try:
        path.symlink_to(target)
    except OSError:
        try:
            os.link(target, path)
        except OSError as error:
            raise TacitError(f"cannot link to {target} ({error.strerror}): use --export-folders copy") from error


def clear_export(out: Path) -> None:
    """Remove the folders of a former export, which may hold images under labels that they no longer have."""
    top = out / "images"
    if top.is_dir() and not top.is_symlink():
        shutil.rmtree(top)
