"""Labels for further images from a model that was saved: nothing is fitted, and images are read in batches."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from ..datasets.files import Images, find_images
from ..datasets.images import printable
from ..embedders import HARMLESS, Embedder, Precomputed, embed_files, load_embedder
from ..embedders.origin import Origin
from ..errors import HandfulError
from ..estimator.classifier import TACClassifier
from ..publish import check_free, publishing
from .export import csv_part, json_lines
from .prediction import DOUBTFUL, Prediction, two_best

MODEL = "model.safetensors"  # in the folder that ``handful label`` writes
BATCH = 256  # images that are embedded and predicted at a time
SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Batch:
    """Some of the images.

    Attributes:
        predictions: of those that can be read.
        chances: (predictions, classes) probabilities.
        classes: the labels.
        broken: the others, with the reason.
    """

    predictions: list[Prediction]
    chances: NDArray[Any]
    classes: list[str]
    broken: dict[str, str]


@dataclass
class Predicted:
    """How many images got which label.

    Attributes:
        counts: by label, without those that are none of these.
        none: how many are none of these.
        doubtful: how many labels are less than 60 % sure.
        threshold: of ``none_score``.
        broken: images that cannot be read, with the reason.
    """

    counts: dict[str, int]
    threshold: float
    none: int = 0
    doubtful: int = 0
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        return sum(self.counts.values()) + self.none

    def add(self, batch: Batch) -> None:
        for label, count in Counter(one.label for one in batch.predictions if not one.is_none).items():
            self.counts[label] += count
        self.none += sum(one.is_none for one in batch.predictions)
        self.doubtful += sum(not one.is_none and one.confidence < DOUBTFUL for one in batch.predictions)
        self.broken |= batch.broken


def predict_images(
    images: str | Path,
    model: str | Path,
    out: str | Path | None = None,
    *,
    embedder: str | None = None,
    device: str = "auto",
    each: Callable[[Batch], None] | None = None,
    bar: Bar = no_bar,
) -> Predicted:
    """Label the images of a folder or archive with a model that ``handful label`` or ``TACClassifier.save`` wrote.

    Args:
        images: a folder, with folders in it, or an archive.
        model: the file, or the folder that ``handful label`` wrote.
        out: a .csv or .jsonl file to write, with the columns of ``predictions.csv``; None writes nothing.
        embedder: where the embedder of the model is now, if it is not where the file says; vectors of another one are
            refused. It must be given for a function of one's own, and for vectors from a file.
        device: for the embedder.
        each: called with every batch.
        bar: a progress bar.
    """
    target = None if out is None else Path(out)
    if target is not None:
        _check_out(target)
    classifier, source = load_model(model_file(Path(model)), embedder, device)
    found = find_images(Path(images))
    total = Predicted(dict.fromkeys(map(str, classifier.classes_), 0), classifier.none_threshold_, broken=found.skipped)
    with _written(target) as file:
        for number, batch in enumerate(_batches(classifier, source, found, bar)):
            if file is not None and target is not None:
                _write(batch, file, target, header=number == 0)
            if each is not None:
                each(batch)
            total.add(batch)
    return total


def model_file(path: Path) -> Path:
    """The file of a model, or the one in a folder that ``handful label`` wrote."""
    return path / MODEL if path.is_dir() else path


def load_model(path: Path, embedder: str | None, device: str) -> tuple[TACClassifier, Embedder | Precomputed]:
    """The model, and the embedder that its rows were made by."""
    classifier = TACClassifier.load(path)
    origin = classifier.embedder_
    if embedder is None:
        source = _named(path, origin, device)
    else:
        same = origin is not None and embedder == origin.name
        source = load_embedder(origin.embedder if origin is not None and same else embedder, device)
    if origin is not None:
        origin.check(source)
    elif source.dim != classifier.n_features_in_:
        raise HandfulError(
            f"{path} was made with vectors of {classifier.n_features_in_} dimensions, but {source.name} gives "
            f"{source.dim}: name another --embedder"
        )
    return classifier, source


def _named(path: Path, origin: Origin | None, device: str) -> Embedder | Precomputed:
    """The embedder that a model names, unless its name could do harm: strangers may have made the file."""
    if origin is None:
        raise HandfulError(f"{path} does not say which embedder its vectors are of: name it with --embedder")
    name = printable(origin.name)
    if origin.is_file:
        raise HandfulError(f"{path} was made from vectors in a file, {name}: add --embedder npy:FILE of new ones")
    if origin.name.partition(":")[0] not in HARMLESS:
        raise HandfulError(
            f"{path} needs the embedder {name}, which may run code or download something: if that is what you want, "
            f"add --embedder {name}"
        )
    try:
        return load_embedder(origin.embedder, device)
    except HandfulError as error:
        raise HandfulError(f"{error} (if it was moved, say with --embedder where it is)") from error


def _batches(classifier: TACClassifier, source: Embedder | Precomputed, found: Images, bar: Bar) -> Iterator[Batch]:
    tick = bar("predicting", len(found.names))
    # Vectors from a file may be in the order of all images.
    whole = source.rows(found.names) if isinstance(source, Precomputed) else None
    for start in range(0, len(found.names), BATCH):
        names = found.names[start : start + BATCH]
        if whole is not None:
            vectors, kept, broken = whole[start : start + BATCH], names, dict[str, str]()
        else:
            vectors, kept, broken = embed_files(source, found.files, names)
        yield predicted(classifier, vectors, kept, broken)
        tick(len(names))


def predicted(
    classifier: TACClassifier, vectors: NDArray[np.float32], names: Sequence[str], broken: dict[str, str]
) -> Batch:
    """The predictions for images of these names and vectors (n, features)."""
    classes = [str(label) for label in classifier.classes_]
    if not names:
        return Batch([], np.zeros((0, len(classes))), classes, broken)
    chances, scores = classifier.predict_proba(vectors), classifier.none_score(vectors)
    threshold, order = classifier.none_threshold_, two_best(chances)
    rows = [
        Prediction(name, classes[best], float(line[best]), classes[second], float(score), bool(0 < threshold >= score),
                   "predicted")
        for name, line, (best, second), score in zip(names, chances, order, scores, strict=True)
    ]  # fmt: skip
    return Batch(rows, chances, classes, broken)


def _check_out(out: Path) -> None:
    """Check, before the long work, that the file can be written and replaces none of the user's."""
    if out.suffix.lower() not in SUFFIXES:
        raise HandfulError(f"--out takes a file that ends in {' or '.join(SUFFIXES)}, got {out}")
    if out.is_dir():
        raise HandfulError(f"{out} is a folder: give a file for --out")
    check_free(out.parent, [out.name])


@contextmanager
def _written(out: Path | None) -> Iterator[IO[bytes] | None]:
    """A file that grows under a temporary name, and takes its place when it is whole."""
    if out is None:
        yield None
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.umask(mask := os.umask(0))
        Path(temporary).chmod(0o666 & ~mask)
        with publishing(out.parent) as stage:
            Path(temporary).replace(stage / out.name)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _write(batch: Batch, file: IO[bytes], out: Path, *, header: bool) -> None:
    if out.suffix.lower() == ".csv":
        file.write(csv_part(batch.predictions, batch.chances, batch.classes, header=header))
    else:
        file.writelines(json_lines(batch.predictions, batch.chances, batch.classes))
