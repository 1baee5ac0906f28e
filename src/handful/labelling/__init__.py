"""A folder of images and a few labels -> a label for each image, tables, folders and a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..datasets.base import Bar, no_bar
from ..datasets.files import open_files
from ..errors import HandfulError
from ..progress import messages
from ..publish import check_free, publishing
from .estimate import Estimate
from .export import TABLES, Exporter, exporters, write_predictions
from .label import Labelling, find_labels
from .predict import MODEL, Predicted, predict_images
from .prediction import Prediction
from .report import REPORT_FILES, report_files
from .sources import Collection, collect, read_labels
from .truth import TrueAccuracy, true_accuracy


def label_images(
    images: str | Path,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    *,
    report: bool = True,
    exports: Sequence[str] = (),
    label_studio: bool = False,
    folders: str | None = None,
    save_model: bool = True,
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
        exports: names of :data:`.export.EXPORTERS`, what else to write.
        label_studio: short for the export ``label-studio``: ``label-studio.json``.
        folders: ``"copy"`` or ``"link"``, short for the exports ``folders-copy`` and ``folders-link``: also sort the
            images into ``out/images/<label>/``.
        save_model: whether to write ``model.safetensors``, with which :func:`predict_images` labels further images.
        command: for the report.
        bar: a progress bar.
        options: of :func:`find_labels`: ``embedder``, ``head``, ``distractors``, ``none_threshold`` and more.
    """
    if folders not in (None, "copy", "link"):
        raise HandfulError(f"--export-folders takes copy or link, got '{folders}'")
    short = [*(["label-studio"] if label_studio else []), *([f"folders-{folders}"] if folders else [])]
    wanted = exporters([*exports, *short])
    target = None if out is None else Path(out)
    if target is not None:
        _check_out(target, Path(images), [*(REPORT_FILES if report else ()), *([MODEL] if save_model else ())], wanted)
    found = find_labels(images, labels, bar=bar, **options)
    if target is None:
        return found
    files = open_files(Path(images))
    with publishing(target) as stage:
        write_predictions(found, stage)
        if save_model:
            _write_model(found, stage / MODEL)
        for one in wanted:
            one.write(found, files, stage)
        if report:
            for name, content in report_files(found, files, command, bar).items():
                (stage / name).write_bytes(content)
    return found


def _write_model(found: Labelling, path: Path) -> None:
    """The labels are of use without a model: if there can be none, say so and go on."""
    try:
        found.save_model(path)
    except HandfulError as error:
        messages.print(f"{MODEL} is not written: {error}", soft_wrap=True)


def _check_out(out: Path, images: Path, more: list[str], wanted: list[Exporter]) -> None:
    """OUT must be a folder of its own, not among the images, which it would then be one of; and nothing in the way."""
    if images.is_dir() and out.resolve().is_relative_to(images.resolve()):
        raise HandfulError(f"{out} lies among the images in {images}: choose an --out elsewhere")
    for one in wanted:
        if one.check is not None:
            one.check(images, out)
    files = [*TABLES, *more, *(name for one in wanted for name in one.files)]
    check_free(out, files, [name for one in wanted for name in one.folders])


__all__ = [
    "Collection",
    "Estimate",
    "Labelling",
    "Predicted",
    "Prediction",
    "TrueAccuracy",
    "collect",
    "find_labels",
    "label_images",
    "predict_images",
    "read_labels",
    "true_accuracy",
]
