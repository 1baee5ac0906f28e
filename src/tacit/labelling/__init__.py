"""A folder of images and a few labels -> a label for each image, tables, folders and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..datasets.base import Bar, no_bar
from ..datasets.files import open_files
from ..errors import TacitError
from .export import EXPORTS, clear_export, export_folders, write_label_studio, write_predictions
from .label import Estimate, Labelling, Prediction, find_labels
from .report import write_report
from .sources import Collection, collect


def label_images(
    images: str | Path,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    *,
    report: bool = True,
    label_studio: bool = False,
    folders: str | None = None,
    command: str = "tacit.label_images",
    bar: Bar = no_bar,
    **options: Any,
) -> Labelling:
    """Label a folder or archive of images from a few labels, and write what was found to a folder.

    Args:
        images: a folder, with folders in it, or a .zip archive.
        labels: a CSV file ``path,label``; see :func:`collect` for what else is understood.
        out: where to write ``predictions.csv``, ``predictions.jsonl`` and ``report.html``; None writes nothing.
        report: whether to write the report.
        label_studio: also write ``label-studio.json``.
        folders: ``"copy"`` or ``"link"``: also sort the images into ``out/images/<label>/``.
        command: for the report.
        bar: a progress bar.
        options: of :func:`find_labels`: ``embedder``, ``head``, ``distractors``, ``none_threshold`` and more.
    """
    if folders is not None and folders not in EXPORTS:
        raise TacitError(f"--export-folders takes {' or '.join(EXPORTS)}, got '{folders}'")
    target = None if out is None else Path(out)
    if target is not None:
        _check_out(target, Path(images))
    found = find_labels(images, labels, bar=bar, **options)
    if target is None:
        return found
    files = open_files(Path(images))
    write_predictions(found, target)
    if label_studio:
        write_label_studio(found, target)
    if folders is not None:
        clear_export(target)
        export_folders(found, files, target, folders)
    if report:
        write_report(found, files, target, command, bar)
    return found


def _check_out(out: Path, images: Path) -> None:
    """OUT must be a folder of its own: not a file, and not among the images, which it would then be one of."""
    if out.exists() and not out.is_dir():
        raise TacitError(f"{out} is a file: give a folder for --out")
    if images.is_dir() and out.resolve().is_relative_to(images.resolve()):
        raise TacitError(f"{out} lies among the images in {images}: choose an --out elsewhere")


__all__ = ["Collection", "Estimate", "Labelling", "Prediction", "collect", "find_labels", "label_images"]
