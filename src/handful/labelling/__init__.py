"""A folder of images and a few labels -> a label for each image, tables, folders and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..datasets.base import Bar, no_bar
from ..datasets.files import open_files
from ..errors import HandfulError
from ..publish import check_free, publishing
from .export import EXPORT, LABEL_STUDIO, TABLES, check_export, export_folders, write_label_studio, write_predictions
from .label import Estimate, Labelling, Prediction, find_labels
from .report import REPORT_FILES, report_files
from .sources import Collection, collect


def label_images(
    images: str | Path,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    *,
    report: bool = True,
    label_studio: bool = False,
    folders: str | None = None,
    command: str = "handful.label_images",
    bar: Bar = no_bar,
    **options: Any,
) -> Labelling:
    """Label a folder or archive of images from a few labels, and write the result to a folder.

    What an earlier call wrote to ``out`` is replaced. If a file in the way is the user's, or was changed since, nothing
    is written (:mod:`handful.publish`).

    Args:
        images: a folder, with folders in it, or a .zip archive.
        labels: a CSV file ``path,label``; see :func:`collect` for alternatives.
        out: where to write ``predictions.csv``, ``predictions.jsonl`` and ``report.html``; None writes nothing.
        report: whether to write the report.
        label_studio: also write ``label-studio.json``.
        folders: ``"copy"`` or ``"link"``: also sort the images into ``out/images/<label>/``.
        command: for the report.
        bar: a progress bar.
        options: of :func:`find_labels`: ``embedder``, ``head``, ``distractors``, ``none_threshold`` and more.
    """
    target = None if out is None else Path(out)
    check_export(folders, Path(images), target)
    if target is not None:
        _check_out(target, Path(images), report, label_studio, folders is not None)
    found = find_labels(images, labels, bar=bar, **options)
    if target is None:
        return found
    files = open_files(Path(images))
    with publishing(target) as stage:
        write_predictions(found, stage)
        if label_studio:
            write_label_studio(found, stage)
        if folders is not None:
            export_folders(found, files, stage, folders)
        if report:
            for name, content in report_files(found, files, command, bar).items():
                (stage / name).write_bytes(content)
    return found


def _check_out(out: Path, images: Path, report: bool, label_studio: bool, folders: bool) -> None:
    """OUT must be a folder of its own, not among the images, which it would then be one of; and nothing in the way."""
    if images.is_dir() and out.resolve().is_relative_to(images.resolve()):
        raise HandfulError(f"{out} lies among the images in {images}: choose an --out elsewhere")
    files = [*TABLES, *(REPORT_FILES if report else ()), *([LABEL_STUDIO] if label_studio else [])]
    check_free(out, files, [EXPORT] if folders else [])


__all__ = ["Collection", "Estimate", "Labelling", "Prediction", "collect", "find_labels", "label_images"]
