"""Labels for very many images from a saved model: Parquet or CSV shards, by threads of this machine or on Ray."""

from __future__ import annotations

import hashlib
import io
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ..datasets.arrow import NO_PYARROW
from ..datasets.base import Bar, no_bar
from ..datasets.units import UNIT
from ..embedders import Precomputed
from ..embedders.bulk import Outcome, embed_sources, run
from ..embedders.gather import Gatherer
from ..embedders.shards import Part, ShardFolder, Task, shard_names
from ..embedders.vectors import VectorFolder, is_vector_folder
from ..embedders.work import Worker, made
from ..errors import HandfulError
from ..estimator.classifier import TACClassifier
from ..io import read_object
from .export import MOST_COLUMNS, csv_part
from .predict import Batch, Predicted, load_model, model_file, predicted
from .prediction import COLUMNS, as_row

FORMATS = ("parquet", "csv")


@dataclass(frozen=True)
class PredictRecipe:
    """Predictions of a model, whose file goes along: workers elsewhere need not have it."""

    model: bytes = field(repr=False)
    embedder: str | None
    device: str
    size: int
    ending: str

    def worker(self, tick: Callable[[int], None] | None = None, stop: threading.Event | None = None) -> Worker:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.safetensors")
            path.write_bytes(self.model)
            classifier, source = load_model(path, self.embedder, self.device)
        if isinstance(source, Precomputed):
            raise HandfulError(f"{source.name} holds vectors, and embeds no images: give its folder as the source")
        gather = Gatherer(source, self.size, tick, stop)

        def parts(task: Task) -> Iterator[Part]:
            for found in gather(task):
                batch = predicted(classifier, found.vectors, found.names, {})
                part = made(task, found, content(batch, self.ending), {"summary": summary(batch, classifier)})
                del part.about["names"]  # the table has them
                yield part

        return parts


def predict_sources(
    sources: Sequence[str | Path],
    model: str | Path,
    out: str | Path,
    *,
    vectors: str | Path | None = None,
    embedder: str | None = None,
    form: str = "parquet",
    size: int = UNIT,
    **how: Any,
) -> tuple[Predicted, Outcome]:
    """Label very many images with a saved model, into a folder of tables. Called again, it goes on.

    Args:
        sources: as :func:`handful.embedders.bulk.embed_sources` takes them; or one folder of vectors.
        model: the file, or the folder that ``handful label`` wrote.
        out: the folder of the tables.
        vectors: a folder to keep the vectors in; None keeps none.
        embedder: where the embedder of the model is now, if it was moved.
        form: ``parquet`` or ``csv``.
        size: images of a table, about.
        how: ``device``, ``workers``, ``ray`` and ``bar``, as in :func:`handful.embedders.bulk.embed_sources`.

    Returns:
        How many images got which label, those of earlier calls included; and what became of this one.
    """
    if form not in FORMATS:
        raise HandfulError(f"unknown format '{form}': choose {' or '.join(FORMATS)}")
    check_format(f".{form}")
    file, device = model_file(Path(model)), how.pop("device", "auto")
    from_disk = len(sources) == 1 and is_vector_folder(Path(sources[0]))
    # What is wrong with the model is said before the work.
    loaded = None if from_disk else load_model(file, embedder, device)
    classifier = TACClassifier.load(file) if loaded is None else loaded[0]
    data = file.read_bytes()
    about = {"model": hashlib.sha256(data).hexdigest(), "classes": [str(label) for label in classifier.classes_]}
    folder = ShardFolder(Path(out), f".{form}", {**about, "size": size})
    if loaded is None:
        outcome = _from_disk(VectorFolder(sources[0]), classifier, folder, how.get("bar", no_bar))
    elif vectors is not None:
        embedded = embed_sources(sources, vectors, loaded[1].name, device=device, size=size, **how)
        outcome = _from_disk(VectorFolder(vectors), classifier, folder, how.get("bar", no_bar))
        outcome.problems, outcome.broken = embedded.problems, embedded.broken
    else:
        outcome = run(PredictRecipe(data, embedder, device, size, f".{form}"), sources, folder, **how)
    return _counted(classifier, folder, outcome), outcome


def _counted(classifier: TACClassifier, folder: ShardFolder, outcome: Outcome) -> Predicted:
    """How many images got which label, by the descriptions of all tables."""
    total = Predicted(dict.fromkeys(map(str, classifier.classes_), 0), classifier.none_threshold_)
    total.broken = outcome.broken
    for name in shard_names(folder.path):
        counted = read_object(folder.path / f"{name}.json").get("summary", {})
        total.none, total.doubtful = total.none + counted["none"], total.doubtful + counted["doubtful"]
        for label, count in counted["counts"].items():
            total.counts[label] += count
    return total


def _from_disk(vectors: VectorFolder, classifier: TACClassifier, folder: ShardFolder, bar: Bar) -> Outcome:
    """Predictions for vectors that are there: a table for each shard of them."""
    if classifier.embedder_ is not None:
        classifier.embedder_.check_origin(vectors.origin)
    with folder.alone():
        there = set(folder.names())
        outcome = Outcome(len(vectors.shards), 0)
        tick = bar("predicting", max(1, len(vectors)))
        for name, first, about in vectors.abouts():
            count = len(about["names"])
            if name in there:
                outcome.before += 1
            else:
                batch = predicted(classifier, vectors[first : first + count], about["names"], {})
                more = {"source": str(vectors.path), "seen": count, "images": count, "broken": {}}
                more["summary"] = summary(batch, classifier)
                folder.write(Part(about.get("unit", name), name, content(batch, folder.ending), more))
                outcome.images += count
            tick(count)
        for name in there - set(vectors.shards):  # of images that have changed since
            folder.remove(name)
            outcome.removed += 1
    return outcome


def check_format(ending: str) -> None:
    if ending == ".parquet":
        try:
            import_module("pyarrow.parquet")
        except ImportError as error:
            raise HandfulError(f"{NO_PYARROW}; or choose --format csv") from error


def summary(batch: Batch, classifier: TACClassifier) -> dict[str, Any]:
    counted = Predicted(dict.fromkeys(map(str, classifier.classes_), 0), 0.0)
    counted.add(batch)
    there = {label: count for label, count in counted.counts.items() if count}
    return {"counts": there, "none": counted.none, "doubtful": counted.doubtful}


def content(batch: Batch, ending: str) -> bytes:
    """A table of predictions: the columns of ``predictions.csv``, and the probabilities."""
    if ending == ".csv":
        return csv_part(batch.predictions, batch.chances, batch.classes)
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    rows = [as_row(one) for one in batch.predictions]
    kinds = {"confidence": arrow.float32(), "none_score": arrow.float32(), "is_none": arrow.bool_()}
    columns = {
        name: arrow.array([_text(row[name]) for row in rows], kinds.get(name, arrow.string())) for name in COLUMNS
    }
    if len(batch.classes) <= MOST_COLUMNS:
        for number, name in enumerate(batch.classes):
            columns[f"p:{name}"] = arrow.array(batch.chances[:, number], arrow.float32())
    else:  # in the order of the classes in shards.json
        columns["probabilities"] = arrow.array(list(batch.chances), arrow.list_(arrow.float32()))
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def _text(value: Any) -> Any:
    """Names that are not UTF-8 are escaped: Parquet has no others."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
