"""``handful compare``: the estimator and its rivals on labelled images or vectors of one's own, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from ..datasets.files import is_image, open_files
from ..embedders import Precomputed, embed_files, load_embedder
from ..embedders.vectors import VectorFolder, is_vector_folder
from ..errors import HandfulError
from ..estimator.benchmark import OURS, Line, benchmark
from ..estimator.kept import Kept, digest
from ..estimator.rivals import Rival
from ..estimator.tasks import Case
from ..publish import check_free, publish
from ..reports.figures import accuracy_by_labels, reliability
from ..reports.page import Entry, Report, csv_bytes, provenance, ranks

Source = tuple[NDArray[Any], NDArray[np.int64]]  # vectors and labels
COLUMNS = {  # of the CSV file and of the table of a case, with their headers
    "accuracy": "accuracy (%)",
    "per_class": "mean over classes (%)",
    "confidence": "confidence (%)",
    "calibration": "calibration error (%)",
    "auroc": "AUROC of none (%)",
    "false_none": "false none (%)",
    "found_none": "found none (%)",
    "overall": "accuracy of all (%)",
    "covered": "interval covers (%)",
    "width": "width of it (%)",
    "seconds": "seconds",
}
LABELS = (1, 2, 5, 10, 20)


def described(sources: Mapping[str, Source]) -> dict[str, str]:
    """What a report says of its data: rows, features, and a checksum of vectors and labels."""
    return {name: f"{len(x):,} x {x.shape[1]:,}, checksum {digest(x, y)[:16]}" for name, (x, y) in sources.items()}


def read_source(path: Path, embedder: str, device: str = "auto", bar: Bar = no_bar) -> Source:
    """Vectors and labels of an .npz file with the arrays X and y, or of a folder or .zip with a folder for each class.

    A folder of vectors that ``handful embed`` wrote has them of images in a folder for each class; it is read from disk
    where it is needed.

    Raises:
        HandfulError: if it is neither, or has fewer than two classes.
    """
    vectors: Any
    if path.suffix == ".npz":
        vectors, names = _arrays(path)
    elif is_vector_folder(path):
        vectors = VectorFolder(path)
        names = np.array([name.partition("/")[0] if "/" in name else "" for name in vectors.names])
        if (names == "").any():
            raise HandfulError(f"{path} has vectors of images outside of class folders: embed a folder for each class")
    else:
        files = open_files(path)
        images = [name for name in files.under("") if is_image(name) and "/" in name]
        if not images:
            raise HandfulError(f"{path} holds no class folders with images, and is no .npz file of vectors X and y")
        found = load_embedder(embedder, device)
        if isinstance(found, Precomputed):
            raise HandfulError("compare embeds images itself: give the vectors as an .npz file with the arrays X and y")
        vectors, kept, _ = embed_files(found, files, images, bar)
        names = np.array([name.partition("/")[0] for name in kept])
    classes, labels = np.unique(names, return_inverse=True)
    if len(classes) < 2:
        raise HandfulError(f"{path} has {len(classes)} class: a comparison needs 2 or more")
    return vectors, labels.astype(np.int64)


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as content:
            vectors, names = content["X"], content["y"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise HandfulError(f"{path} is not an .npz file with the arrays X and y: {error}") from error
    if vectors.ndim != 2 or names.shape != vectors.shape[:1] or vectors.dtype.kind not in "fiu":
        raise HandfulError(
            f"{path}: X must be numbers (rows, features) and y (rows,), got {vectors.shape} and {names.shape}"
        )
    if not np.isfinite(vectors).all():
        raise HandfulError(f"{path}: X holds numbers that are not finite")
    return vectors.astype(np.float32), names


def check_out(out: Path) -> None:
    """Whether the report may be written there; before the work."""
    check_free(out, ["report.html", "report.md", "comparison.csv"])


def write_comparison(
    sources: dict[str, Source], cases: Sequence[Case], out: Path, command: str, *, draws: int = 30, seed: int = 0,
    rivals: Mapping[str, Rival] | None = None, **how: Any,
) -> list[Line]:  # fmt: skip
    """Run the comparison, and write report.html, report.md, comparison.csv and the pictures to ``out``.

    What is measured is kept in ``out``/cells after every draw: called again, it goes on. ``how``: ``jobs`` and ``bar``
    of :func:`benchmark`.
    """
    lines = benchmark(sources, cases, draws=draws, seed=seed, rivals=rivals, kept=Kept(out), **how)
    report = Report("Few labels: the estimator and its rivals")
    report.paragraph(
        f"{draws} random draws of each case, the same for all; ± is half of the 95 % interval over draws. Rivals with "
        "a setting choose it by cross-validation over the labels that they are given. Accuracy: of unlabelled images "
        "of the classes. 'First' counts the cases where it is first, or behind the first by no more than the interval. "
        "Accuracy of all: of all unlabelled images; those of other classes are right if they are called none of these. "
        "The estimator gives a 95 % interval for it, and 'interval covers' is the share of draws where that is true."
    )
    closed = [line for line in lines if not line.case.foreign]
    if closed:
        _overview(report, closed)
        rows = [
            {"source": line.source, "shape": line.case.shape, "labels": line.case.labels, "method": line.classifier,
             "accuracy": 100 * line.mean["accuracy"], "interval": 100 * line.interval["accuracy"],
             "confidence": 100 * line.mean["confidence"]}
            for line in closed
        ]  # fmt: skip
        report.section("Accuracy by labels a class")
        report.picture(accuracy_by_labels(rows, OURS), "accuracy against labels a class", "accuracy", rows)
        ours = [row for row in rows if row["method"] == OURS]
        report.section("Is the confidence true?")
        report.picture(reliability(ours), "accuracy against confidence of the estimator", "reliability", ours)
    _coverage(report, [line for line in lines if line.classifier == OURS])
    for source in sources:
        for case in cases:
            own = [line for line in lines if (line.source, line.case) == (source, case)]
            report.section(f"{source}: {case}")
            report.table(["classifier", *_headers(own)], _cells(own))
    report.section("Where this comes from")
    report.facts(provenance(command, described(sources)))
    table = [
        {"source": line.source, **asdict(line.case), "classifier": line.classifier, "draws": line.draws,
         **line.mean, **{f"{key}_interval": value for key, value in line.interval.items()},
         "behind_first": line.behind_first, "behind_first_interval": line.behind_interval}
        for line in lines
    ]  # fmt: skip
    report.attach("comparison.csv", csv_bytes(table))
    publish(out, report.files())
    return lines


def summary(lines: Sequence[Line]) -> list[tuple[str, float, float, int, int]]:
    """Classifiers, best first: name, mean accuracy, mean over classes, cases where it is (as good as) first, cases."""
    names = dict.fromkeys(line.classifier for line in lines if np.isfinite(line.mean["accuracy"]))
    found = []
    for name in names:
        own = [line for line in lines if line.classifier == name]
        level = sum(line.behind_first >= -line.behind_interval or line.behind_first == 0 for line in own)
        accuracy, per_class = (float(np.mean([line.mean[key] for line in own])) for key in ("accuracy", "per_class"))
        found.append((name, accuracy, per_class, level, len(own)))
    return sorted(found, key=lambda entry: -entry[1])


def _overview(report: Report, lines: Sequence[Line]) -> None:
    for shape in dict.fromkeys(line.case.shape for line in lines):
        own = [line for line in lines if line.case.shape == shape]
        labels = sorted({line.case.labels for line in own})
        report.section(f"Mean over all sources, {shape} classes: accuracy (%)")
        rows = []
        for name, mean, per_class, level, cases in summary(own):
            values = [
                100 * float(np.mean([line.mean["accuracy"] for line in own
                                     if line.classifier == name and line.case.labels == count]))
                for count in labels
            ]  # fmt: skip
            rows.append([name, *(f"{value:.1f}" for value in values), f"{100 * mean:.1f}", f"{100 * per_class:.1f}",
                         f"{level} of {cases}"])  # fmt: skip
        report.table(
            ["classifier", *(f"{n} label{'s' * (n > 1)}" for n in labels), "mean", "over classes", "first"], rows
        )


def _coverage(report: Report, lines: Sequence[Line]) -> None:
    """How often the interval that the estimator gives holds the accuracy: by source, over the numbers of labels."""
    labels = sorted({line.case.labels for line in lines})
    kinds = list(dict.fromkeys((line.source, line.case.shape) for line in lines))
    rows = []
    for source, shape in kinds:
        own = {line.case.labels: line for line in lines if (line.source, line.case.shape) == (source, shape)}
        cells = [f"{100 * own[n].mean['covered']:.0f} ({100 * own[n].mean['width']:.0f})" for n in labels]
        rows.append([f"{source}, {shape}", *cells])
    means = [[line.mean["covered"] for line in lines if line.case.labels == n] for n in labels]
    rows.append(["mean", *(f"{100 * float(np.mean(values)):.0f}" for values in means)])
    report.section("Does the interval cover the accuracy?")
    report.paragraph("Share of draws (%), in brackets the mean width of the interval (points). 95 is what it promises.")
    report.table(["source", *(f"{n} label{'s' * (n > 1)}" for n in labels)], rows)


def _headers(lines: Sequence[Line]) -> list[str]:
    return [COLUMNS[key] for key in _present(lines)]


def _present(lines: Sequence[Line]) -> list[str]:
    return [key for key in COLUMNS if any(np.isfinite(line.mean[key]) for line in lines)]


def _cells(lines: Sequence[Line]) -> list[list[Entry | str]]:
    present = _present(lines)
    better: dict[str, list[str]] = {
        key: ranks([line.mean[key] if np.isfinite(line.mean[key]) else None for line in lines])
        for key in ("accuracy", "per_class", "auroc") if key in present
    }  # fmt: skip
    rows: list[list[Entry | str]] = []
    for index, line in enumerate(lines):
        cells: list[Entry | str] = [line.classifier]
        for key in present:
            value = line.mean[key]
            if not np.isfinite(value):
                cells.append("")
            elif key == "seconds":
                cells.append(f"{value:.2f}")
            else:
                rank = better[key][index] if key in better else ""
                cells.append(Entry(f"{100 * value:.1f} ± {100 * line.interval[key]:.1f}", rank=rank))
        rows.append(cells)
    return rows
