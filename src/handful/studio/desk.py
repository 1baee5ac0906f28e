"""A studio at work: images, labels, vectors and predictions of one folder, for the page and for programs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..embedders import Embedder, Precomputed
from ..embedders.origin import Origin
from ..errors import HandfulError
from ..estimator.suggestions import suggest
from ..labelling.book import FREE, KEYS, NONE, Action, Book, Conflict, Ids, NotThere
from ..labelling.session import Session
from ..labelling.sources import read_labels
from .collection import Images, changes
from .embedding import Embedding, Progress
from .events import Events
from .learner import Learner, advice
from .log import Log
from .look import Look, Query, Sight
from .surroundings import Surroundings
from .thumbnails import Thumbnails
from .watch import Watch

MOST_NAMED = 1000  # images that the answer to an action names
MOST_NOTICES = 20


class Desk:
    """The images in a folder or archive, and their labels in a log.

    Args:
        photos: the folder or archive, which is only read.
        out: the folder of the log.
        embedder: maps images to vectors.
        labels: a CSV file ``path,label``, read in once.
        options: of `Session`: ``head``, ``distractors``, ``iterations``.
    """

    def __init__(
        self, photos: Path, out: Path, embedder: Embedder | Precomputed, labels: Path | None = None, **options: Any
    ) -> None:
        self.photos, self.out, self.log = photos, out, Log(out)
        try:
            self.images = Images(photos, self.log)
            self.book = _read(self.log, self.images.known)
            self.session = Session(names=self.images.names, book=self.book, ids=self.images.ids, **options)
            self.lock = threading.RLock()
            if labels is not None:
                self._import(photos, labels)
            self._embedding = Embedding(self.images, embedder, self._deliver, self._moved)
        except BaseException:
            self.log.close()
            raise
        self.embedder, self.origin = str(getattr(embedder, "name", "given vectors")), Origin.of(embedder)
        self.watch = Watch(self.images, self._changed)
        self.events, self.thumbnails = Events(), Thumbnails(self.images, out, self.watch.look)
        count = len(self.images)
        self._folded = [name.casefold() for name in self.images.names]
        self._vectors: NDArray[np.float32] | None = None
        self.embedded, self._embedded_count = np.zeros(count, dtype=bool), 0
        self.progress = Progress("looking", "looking at the images", 0, count)
        self.learner = Learner(self.session, self.lock, self._have, self._finished, self._told)
        self.around = Surroundings(self.images, self._have, lambda what: self.events.tell(what, self.part(what)))
        self._looked: tuple[Any, Look] | None = None
        self._changes = 0  # of files
        self.notices = self._notices()

    def start(self) -> None:
        self.learner.start()
        self.around.start()
        self._embedding.start()
        self.watch.start()

    def close(self) -> None:
        self.events.end()
        self.watch.end()
        self._embedding.end()
        self.learner.end()
        self.around.end()
        self.thumbnails.close()
        with self.lock:
            self.log.close()

    def do(self, act: Callable[[Book], Action]) -> dict[str, Any]:
        """Change labels or classes by an action of the book; it is on disk when this returns."""
        with self.lock:
            action = act(self.book)
        if action:
            self.learner.changed()
            self.events.tell("labels", {"revision": self.book.revision, "count": len(action.images)})
        numbers = self.images.numbers[action.images]
        return {
            "revision": self.book.revision, "count": len(action.images), "what": action.what,
            "images": numbers[numbers >= 0][:MOST_NAMED].tolist(), "state": self.state(),
        }  # fmt: skip

    def label(self, numbers: list[int] | NDArray[np.int64], name: str | None) -> dict[str, Any]:
        return self.do(lambda book: book.label(self.ids(numbers), name))

    def accept(self, numbers: NDArray[np.int64], shown: list[int] | None = None, *, seen: bool) -> dict[str, Any]:
        """Turn what was found for these images, or what somebody was shown of each, into given labels."""
        ids, found = self.ids(numbers), self.learner.opinion.found
        if found is None:
            raise Conflict("there are no predictions to accept: label images of two classes first")
        labels = found.label[numbers] if shown is None else np.array(shown, dtype=np.int32)
        return self.do(lambda book: book.accept(ids, labels, seen=seen))

    def matching(self, query: Query, version: int | None) -> NDArray[np.int64]:
        """The images that match, if the predictions are still those of this version."""
        look, now = self.look(), self.learner.opinion.version
        if version is not None and version != now:
            raise Conflict(f"the predictions are of version {now} by now, not {version}: look again")
        return look.select(query)

    def ids(self, numbers: list[int] | NDArray[np.int64]) -> Ids:
        asked = np.asarray(numbers, dtype=np.int64)
        if len(asked) and not (asked.min() >= 0 and asked.max() < len(self.images)):
            wrong = int(asked.max() if asked.min() >= 0 else asked.min())
            raise NotThere(f"there is no image {wrong}: there are {len(self.images):,}, from 0 on")
        return self.images.ids[asked].astype(np.int32)

    def look(self) -> Look:
        """The images as they are shown now."""
        opinion = self.learner.opinion
        key = (
            self.book.revision, opinion.version, self.around.version, self._embedded_count, len(self.images.broken),
            self._changes,
        )  # fmt: skip
        looked = self._looked
        if looked is None or looked[0] != key:
            with self.lock:
                labels = self.session.snapshot().labels
            broken = np.zeros(len(self.images), dtype=bool)
            broken[list(self.images.broken)] = True
            sight = Sight(
                self._folded,
                self.embedded.copy(),
                broken,
                self.around.groups,
                self.around.duplicate,
                self.around.line,
                self.likeness,
            )
            looked = self._looked = key, Look(labels, opinion.found, self.book.is_label, opinion.before, sight)
        return looked[1]

    def likeness(self, number: int) -> NDArray[np.float32] | None:
        """(n,) cosines of all images with one, NaN for those without a vector."""
        if not self.embedded[number] or self._vectors is None:
            return None
        found = self.around.likeness(number)
        if found is not None:
            return found
        rows, vectors = self._have()
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(self._vectors[number])
        cosines = np.full(len(self.images), np.nan, dtype=np.float32)
        cosines[rows] = vectors @ self._vectors[number] / np.maximum(lengths, 1e-12)
        return cosines

    def next_images(self, count: int, skip: set[int]) -> list[int]:
        """Images to label next: those that stand for many doubtful ones; at first, the most typical of each group."""
        look = self.look()
        open_ = ~look.given & look.sight.embedded & ~look.sight.broken
        open_[[number for number in skip if number < len(open_)]] = False
        rows = np.flatnonzero(open_)
        if look.found is None:
            groups = look.sight.groups
            if groups is None:
                return [int(row) for row in np.flatnonzero(~look.given & ~look.sight.broken) if row not in skip][:count]
            known = np.bincount(groups.of[look.given & (groups.of >= 0)], minlength=len(groups.sizes))
            first = np.lexsort((-groups.typical[rows], np.where(groups.of[rows] < 0, 1 << 20, groups.of[rows])))
            _, places = np.unique(groups.of[rows][first], return_index=True)
            best = rows[first][places]
            ordered = best[np.lexsort((groups.of[best], known[groups.of[best]]))]
            return [int(row) for row in ordered[:count]]
        points, places, found = self.around.points, self.around.place[look.found.rows], look.found
        if points is None or (places < 0).any():
            return [int(row) for row in rows[np.argsort(-look.doubt[rows], kind="stable")][:count]]
        soft, rates = np.asarray(found.model.label_distributions_), found.none_score[found.rows]
        known = np.flatnonzero(~open_[found.rows])
        picked = suggest(points[places], soft, rates if found.threshold else None, known, count)
        return [int(row) for row in found.rows[picked]]

    def state(self) -> dict[str, Any]:
        with self.lock:
            book = self.book
            classes, revision, undo, redo = book.classes, book.revision, book.undoable, book.redoable
        look, opinion, standing = self.look(), self.learner.opinion, self.learner.standing
        counts = look.counts([NONE, *classes])
        reason = self._model_state(look)
        text, stop = advice(reason, standing)
        expected = None if standing is None else dict(zip(("accuracy", "low", "high"), standing.accuracy, strict=True))
        known = standing is not None and standing.gain is not None
        return {
            "images": len(self.images), "labelled": look.total("given"), "embedded": self._embedded_count,
            "broken": len(self.images.broken),
            "classes": [
                {"id": one.id, "name": one.name, "key": one.key, "colour": one.colour,
                 **dict(zip(("given", "found", "doubtful"), counts[one.id], strict=True))}
                for one in classes.values()
            ],
            "none": {"name": self.book.none_label, "given": counts[NONE][0], "found": counts[NONE][1]},
            "doubtful": look.total("doubtful"), "unlabelled": len(self.images) - look.total("given"),
            "changed": look.total("changed"), "revision": revision, "undo": undo, "redo": redo,
            "model": {
                "state": reason, "version": opinion.version, "revision": opinion.revision, "busy": self.learner.busy,
                "checked": standing is not None and standing.revision == opinion.revision, "expected": expected,
                "gain": {"labels": standing.more, "accuracy": standing.gain} if standing and known else None,
                "advice": text, "stop": stop, "problem": self.learner.problem,
            },
            "embedding": vars(self.progress), "map": self.part("map"), "groups": self.part("groups"),
            "duplicates": look.total("duplicate"), "folder": str(self.photos), "out": str(self.out),
            "embedder": self.embedder, "keys": KEYS, "notices": self.notices,
        }  # fmt: skip

    def part(self, what: str) -> dict[str, Any]:
        """How far the map or the groups are."""
        version = self.around.map_version if what == "map" else self.around.version
        ready = self.around.map is not None if what == "map" else self.around.groups is not None
        return {"state": "ready" if ready else "busy" if self.around.busy else "waiting", "version": version}

    def vectors_of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.zeros((0, 1), np.float32) if self._vectors is None else self._vectors[rows]

    def _model_state(self, look: Look) -> str:
        if self.learner.opinion.found is not None:
            return "ready"
        known = sum(1 for given, _, _ in look.counts(list(self.book.classes)).values() if given)
        return "learning" if known > 1 else "one-class" if known else "no-labels"

    def _have(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The images with a vector, and the vectors; not copied if all are there."""
        rows = np.flatnonzero(self.embedded)
        if self._vectors is None:
            return rows[:0], np.zeros((0, 1), dtype=np.float32)
        return rows, self._vectors if len(rows) == len(self._vectors) else self._vectors[rows]

    def _finished(self) -> bool:
        return self.progress.state in ("done", "failed")

    def _deliver(self, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        if self._vectors is None:
            self._vectors = np.zeros((len(self.images), vectors.shape[1]), dtype=np.float32)
        if len(numbers):
            self._vectors[numbers] = vectors
            self.embedded[numbers] = True
            self._embedded_count = int(self.embedded.sum())
        self.learner.changed()

    def _moved(self, progress: Progress) -> None:
        self.progress = progress
        self.events.tell("embedding", {**vars(progress), "embedded": self._embedded_count})
        if self._finished():
            self.learner.changed()
            self.around.begin()

    def _changed(self, files: dict[int, str]) -> None:
        """Files are others now, gone or back: labels stay with the images that had them, vectors are made anew."""
        others = [number for number, what in files.items() if what == "other"]
        with self.lock:
            self.book.grow(self.images.known)
        if others and not self._embedding.given:
            self.embedded[others] = False
            self._embedded_count = int(self.embedded.sum())
            self.session.predictor = None  # it holds the vectors of what was there before
        self._changes += 1
        self.notices = [*self.notices, *changes(self.images, files)][-MOST_NOTICES:]
        self.events.tell("files", {"changed": len(files)})
        self.learner.changed()
        self._embedding.again(others)

    def _told(self, what: str) -> None:
        opinion = self.learner.opinion
        if what == "model":
            content = {
                "version": opinion.version, "revision": opinion.revision, "changed": self.look().total("changed")
            }  # fmt: skip
            self.events.tell("model", content)
        elif what == "checked":
            self.events.tell("checked", self.state()["model"])
        else:
            self.events.tell("problem", {"error": self.learner.problem})

    def _import(self, photos: Path, table: Path) -> None:
        """Read labels from a table, each content once; images that have a label keep theirs."""
        given = read_labels(photos, table)
        content = hashlib.sha256(repr(sorted(given.items())).encode("utf-8", "surrogatepass")).hexdigest()
        seen = self.log.fact("tables") or []
        if content in seen:
            return
        numbers = {name: number for number, name in enumerate(self.images.names)}
        ids = {int(self.images.ids[numbers[name]]): label for name, label in given.items()}
        ids = {number: label for number, label in ids.items() if self.book.labels[number] == FREE}
        self.book.name_labels(ids, f"{len(ids):,} labels read from {table.name}")
        self.log.set_fact("tables", [*seen, content])

    def _notices(self) -> list[str]:
        images, labels = self.images, self.book.labels
        found = []
        if lost := [number for number in images.gone if labels[number] != FREE]:
            found.append(
                f"{len(lost):,} labelled images are no longer there; their labels are kept, and count again if they "
                "come back."
            )
        if images.replaced:
            found.append(
                f"{len(images.replaced):,} images are other ones than before under the same name (the first: "
                f"{images.shown[images.replaced[0]]}); they have no label yet."
            )
        found += [f"{name}: {reason}" for name, reason in list(images.skipped.items())[:10]]
        return found


def _read(log: Log, count: int) -> Book:
    """The book that the actions of a log add up to."""
    book = Book(count, record=log.record)
    try:
        for kind, action in log.actions():
            book.replay(kind, action)
    except IndexError as error:
        raise HandfulError(f"the log in {log.out} is damaged: move it away, or choose another --out") from error
    return book
