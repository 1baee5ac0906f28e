"""``report.html``: the result of ``handful label``, with example images of each class."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from contextlib import suppress

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ..datasets.base import Bar, no_bar
from ..datasets.cache import cache_root, write_cache
from ..datasets.files import Files
from ..datasets.images import BrokenImage, decode, quiet
from ..errors import HandfulError
from ..reports.figures import COLOURS, GREY, MARKERS, Row, add_legend, in_the_plane
from ..reports.page import PAGE, TEXT, Report, provenance
from .estimate import Estimate
from .label import Labelling
from .prediction import DOUBTFUL, Prediction

REPORT_FILES = (
    PAGE, TEXT,
    *(f"{name}.{kind}" for name in ("map", "calibration") for kind in ("png", "svg", "csv")),
)  # fmt: skip
THUMBNAIL = 112  # pixels
SHOWN = 6  # images of a class at either end
SHOWN_NONE = 18
MOST_ASKED = 10  # questions of each kind
MOST_MISTAKES = 30  # kinds of mistakes
SHOWN_CLASSES = 40  # of which the page shows images
MAPPED_CLASSES = len(COLOURS) * len(MARKERS)  # that can be told apart on the map
FADED = "#7f95a8"  # classes for which no colour is left
MAP_FORMAT = 1  # counts up when maps are drawn in another way
MAPPED = 2000  # images on the map; more take minutes, and hide each other


def report_files(found: Labelling, files: Files, command: str, bar: Bar = no_bar) -> dict[str, bytes]:
    """The page, and the map as PNG, SVG and CSV, by name."""
    report = Report("handful label")
    _summary(report, found)
    doubtful = Counter(one.label for one in found.doubtful())
    counts = found.counts()
    # Where there is most to look at; sorted anew, as the table is.
    shown = sorted(sorted(found.classes, key=lambda label: (-doubtful[label], -counts[label]))[:SHOWN_CLASSES])
    tick = bar("writing the report", len(shown) + 3)
    if found.next_to_label:
        by_path = {one.path: one for one in found.predictions}
        report.section("Label these next")
        report.paragraph("Each stands for many images of which the labels are uncertain: their labels would help most.")
        _gallery(report, files, [by_path[path] for path in found.next_to_label])
    if found.estimate is not None:
        report.section("How accurate is this?")
        _by_class(report, found.estimate)
    tick(1)
    report.section("The map")
    rows = map_rows(found)
    report.picture(draw_map(rows), "all images, by label", "map", rows)
    report.paragraph(
        f"t-SNE of {len(rows):,} images"
        + (f" of {len(found.predictions):,}" if len(rows) < len(found.predictions) else "")
        + ", as they were clustered. Ringed: labelled by you. Grey: none of these."
    )
    tick(1)
    if len(shown) < len(found.classes):
        report.section(f"Images of {len(shown)} classes")
        report.paragraph(
            f"Those with the most doubtful labels, then the largest. The images of the other "
            f"{len(found.classes) - len(shown):,} classes are in predictions.csv."
        )
    predicted: dict[str, list[Prediction]] = {label: [] for label in found.classes}
    for one in found.predictions:
        if one.source == "predicted" and not one.is_none:
            predicted[one.label].append(one)
    for label in shown:
        sure = sorted(predicted[label], key=lambda one: -one.confidence)
        report.section(f"{label}: {counts[label]} images")
        if sure[:SHOWN]:
            report.paragraph("The surest:")
            _gallery(report, files, sure[:SHOWN])
        if sure[SHOWN:]:
            report.paragraph("The least sure:")
            _gallery(report, files, sure[max(SHOWN, len(sure) - SHOWN) :][::-1])
        tick(1)
    none = sorted((one for one in found.none() if one.source == "predicted"), key=lambda one: one.none_score)
    if none:
        report.section(f"None of these: {len(found.none())} images")
        report.paragraph("Most clearly so first; then those nearest to the threshold.")
        _gallery(report, files, [*none[: SHOWN_NONE // 2], *none[max(SHOWN_NONE // 2, len(none) - SHOWN_NONE // 2) :]])
    if found.broken:
        report.section(f"Not read: {len(found.broken)} images")
        report.facts(found.broken)
    tick(1)
    report.section("Where this comes from")
    report.facts(provenance(command, found.about))
    return report.files()


def _summary(report: Report, found: Labelling) -> None:
    counts, given = found.counts(), dict.fromkeys(found.classes, 0)
    for one in found.predictions:
        if one.source == "given" and not one.is_none:
            given[one.label] += 1
    report.section("What was found")
    doubtful = Counter(one.label for one in found.doubtful())
    lines = [[label, str(given[label]), str(counts[label] - given[label]), str(doubtful[label])] for label in counts]
    lines.append(["none of these", "", str(len([one for one in found.none() if one.source == "predicted"])), ""])
    report.table(["label", "given", "found", "of these doubtful"], lines)
    report.paragraph(
        f"Doubtful: less than {DOUBTFUL:.0%} sure of the label. An image is 'none of these' if its none score is at "
        f"most {found.threshold:.3f}."
    )
    report.paragraph(describe(found.estimate, found.expected))
    for question in questions(found):
        report.paragraph(question)
    if found.estimate is not None and found.estimate.calibration:
        rows: list[Row] = [
            {"confidence": sure, "accuracy": right, "images": count}
            for sure, right, count in found.estimate.calibration
        ]
        report.picture(draw_calibration(rows), "confidence against accuracy", "calibration", rows)


def describe(estimate: Estimate | None, expected: tuple[float, float, float] | None = None) -> str:
    """What is known about the accuracy, in words."""
    words = ""
    if expected is not None:
        words = "Expected accuracy, of all images, none of these included: {:.0%} (95 % interval {:.0%} to {:.0%}). "
        words = words.format(*expected)
    if estimate is None:
        return words + "It could not be checked: that takes a class with two labels or more."
    (low, high), total = estimate.interval, estimate.total
    single = ""
    if estimate.single:
        named = ", ".join(f"'{label}'" for label in estimate.single[:3])
        more = f" and {len(estimate.single) - 3} more" if len(estimate.single) > 3 else ""
        single = f" Nothing is known about classes with a single label: {named}{more}."
    return (
        f"{words}Checked: {estimate.right} of {total} given labels were found when they were hidden, "
        f"{estimate.right / total:.0%} (95 % interval {low:.0%} to {high:.0%}); logistic regression on your labels "
        f"alone: {estimate.baseline / total:.0%}. An image that was called none of these counts as wrong. This holds "
        "for images like those that you labelled; a choice of easy ones flatters it, and with all labels in use it is "
        f"a little better.{single}"
    )


def questions(found: Labelling) -> list[str]:
    """What the user should look at: labels that may be one class, and given labels that look wrong."""
    asked = [
        f"The labels '{one}' and '{other}' look alike: are they one class?" for one, other in found.alike[:MOST_ASKED]
    ]
    for path, given, other, sure in found.suspects()[:MOST_ASKED]:
        asked.append(f"Is {path} really '{given}'? Without its label, '{other}' is {sure:.0%} likely.")
    return asked


def _by_class(report: Report, estimate: Estimate) -> None:
    """How the hidden labels of each class fared, which classes were taken for one another, and the calibration."""
    lines = []
    for label, (right, given, called) in estimate.by_class().items():
        precision = f"{right / called:.0%}" if called else ""
        lines.append([label, f"{right} of {given}", f"{right / given:.0%}", precision])
    report.paragraph(
        "The hidden labels by class: found, and of the images that were called so, the share that is right."
    )
    report.table(["label", "found", "recall", "precision"], lines)
    if mistakes := estimate.confusions():
        report.paragraph("Taken for one another:")
        rows = [[given, other or "none of these", str(count)] for given, other, count in mistakes[:MOST_MISTAKES]]
        report.table(["given", "predicted", "times"], rows)


def map_rows(found: Labelling) -> list[Row]:
    """The position of each image on the map, with its label; of very many images, an evenly spaced sample."""
    picked = np.unique(np.linspace(0, len(found.predictions) - 1, min(MAPPED, len(found.predictions))).astype(int))
    flat = flattened(found.vectors[picked])
    chosen = [found.predictions[index] for index in picked]
    return [
        {"path": one.path, "x": float(x), "y": float(y), "label": "none of these" if one.is_none else one.label,
         "is_none": one.is_none, "source": one.source}
        for one, (x, y) in zip(chosen, flat, strict=True)
    ]  # fmt: skip


def flattened(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Two coordinates of each vector, by t-SNE: (n, dim) -> (n, 2).

    They are cached, so that the next call, with more labels of the same images, is faster and shows each image at the
    same position.
    """
    if len(vectors) < 5:  # nothing that t-SNE could do
        return np.zeros((len(vectors), 2), dtype=np.float32)
    content = np.ascontiguousarray(vectors, dtype="<f4")
    key = hashlib.sha256(f"{MAP_FORMAT} {content.shape}".encode() + content.tobytes()).hexdigest()
    path = cache_root() / "maps" / f"{key[:32]}.f4"
    with suppress(OSError, ValueError):  # none is kept, or half a number too much
        kept = np.frombuffer(path.read_bytes(), dtype="<f4")
        if kept.size == 2 * len(vectors) and np.isfinite(kept).all():
            return kept.reshape(-1, 2)
    from sklearn.decomposition import PCA

    plain = PCA(min(50, *vectors.shape), random_state=0).fit_transform(vectors)  # much faster, and looks the same
    flat = np.ascontiguousarray(in_the_plane(plain, 0), dtype="<f4")
    with suppress(HandfulError):  # a cache that cannot be written costs time, and nothing else
        write_cache(path, flat.tobytes())
    return flat


def draw_map(rows: list[Row]) -> Figure:
    """One colour and marker per label, as far as they suffice; rings around images with given labels."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axis = figure.subplots()
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        if not row["is_none"]:
            by_label.setdefault(row["label"], []).append(row)
    largest = sorted(sorted(by_label, key=lambda label: -len(by_label[label]))[:MAPPED_CLASSES])
    others = set(by_label) - set(largest)

    def points(name: str, mine: list[Row], colour: str, marker: str) -> list[tuple[Artist, str]]:
        if not mine:
            return []
        dots = axis.scatter([row["x"] for row in mine], [row["y"] for row in mine], s=12, color=colour, marker=marker,
                            linewidths=0.5 if marker == "x" else 0)  # fmt: skip
        return [(dots, f"{name} ({len(mine)})")]

    none = points("none of these", [row for row in rows if row["is_none"]], GREY, "o")
    rest = [row for row in rows if not row["is_none"] and row["label"] in others]
    more = points(f"{len(others):,} more classes", rest, FADED, "x")
    own = []
    for index, label in enumerate(largest):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS)]
        own += points(label, by_label[label], colour, marker)
    ringed = [row for row in rows if row["source"] == "given"]
    rings = axis.scatter([row["x"] for row in ringed], [row["y"] for row in ringed], s=60, facecolors="none",
                         edgecolors="black", linewidths=1)  # fmt: skip
    axis.set(xticks=[], yticks=[])
    add_legend(figure, [*none, *own, *more, (rings, "labelled by you")], loc="outside right upper", fontsize=8)
    return figure


def draw_calibration(rows: list[Row]) -> Figure:
    """Plot the share of correct predictions against confidence, in five bins."""
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="as sure as right")
    axis.plot([row["confidence"] for row in rows], [row["accuracy"] for row in rows], marker="o", color=COLOURS[0])
    axis.set(xlabel="confidence, by fifths of the hidden labels", ylabel="share that was right", xlim=(0, 1.02),
             ylim=(0, 1.02))  # fmt: skip
    axis.legend(frameon=False, fontsize=8)
    return figure


def _gallery(report: Report, files: Files, shown: list[Prediction]) -> None:
    with quiet():
        report.gallery([(_thumbnail(files, one.path), _caption(one)) for one in shown])


def _caption(one: Prediction) -> str:
    name = one.path.rsplit("/", 1)[-1]
    if one.is_none:
        return f"{name}: none of these ({one.none_score:.2f}); else {one.label}"
    return f"{name}: {one.label} {one.confidence:.0%}, else {one.runner_up}"


def _thumbnail(files: Files, name: str) -> bytes:
    try:
        pixels = decode(files.read(name), THUMBNAIL, 3).pixels
    except BrokenImage:  # it could be read a minute ago
        pixels = np.full((THUMBNAIL, THUMBNAIL, 3), 230, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
