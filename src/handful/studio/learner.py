"""The model follows the labels: after each change all images are predicted anew, without anybody waiting for it.

Two threads. One predicts: it always takes the newest labels, and leaves out those in between if there were several. The
other follows behind, in the background: it estimates the accuracy, which also says how sure to be, and what more labels
would bring.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..labelling.book import FREE, Conflict, Ids
from ..labelling.predictor import Found, gain
from ..labelling.session import Session, Snapshot
from .embedding import in_the_background

FEWEST = 8  # images with a vector from which on there is a model
GROWTH = 2.0  # by which the embedded images must have grown for the model to take in the new ones, before all are there
LITTLE = 0.005  # accuracy that more labels should bring
MORE = 0.25  # more labels, of those there are; and at least LEAST_MORE
LEAST_MORE = 10
PAUSES = 3  # as long as a check, before it is estimated what more labels would bring
SHORT, LONGEST_PAUSE, MOST_PATIENCE = 0.1, 1.5, 10.0  # seconds of a check; of a pause; until it is checked anyhow


@dataclass(frozen=True)
class Standing:
    """How good it is.

    Attributes:
        revision: of the labels that it is about.
        accuracy: of all images, those with a label included, and the ends of its 95 % interval.
        more, gain: so many more labels would raise it by about this; None if that is not known (yet).
    """

    revision: int
    accuracy: tuple[float, float, float]
    more: int = 0
    gain: float | None = None


@dataclass(frozen=True)
class Opinion:
    """The newest predictions.

    Attributes:
        version: counts them.
        revision: of the labels that they were learned from.
        found: None without labels of two classes.
        before: (n,) the labels found before the last change of labels.
    """

    version: int = 0
    revision: int = 0
    found: Found | None = None
    before: Ids | None = None


class Learner:
    """Predicts in the background.

    Args:
        session: with the labels.
        alone: held while the labels change.
        vectors: gives the images that have a vector (m,), and the vectors.
        finished: whether there will be no more vectors.
        tell: called when there are new predictions ("model"), or a new estimate of the accuracy ("checked").
    """

    def __init__(
        self,
        session: Session,
        alone: AbstractContextManager[Any],
        vectors: Callable[[], tuple[NDArray[np.int64], NDArray[np.float32]]],
        finished: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self.opinion = Opinion()
        self.standing: Standing | None = None
        self.problem: str | None = None
        self._session, self._alone, self._vectors, self._finished = session, alone, vectors, finished
        self._tell = tell
        self._confirmed = 0  # counts checks: the predictions after one are other ones
        self._used, self._takes = -1, 0.0
        self._wake, self._due, self._check_due, self._ended = threading.Condition(), False, False, False
        self.busy = False
        self._threads = [
            threading.Thread(target=self._repeat, args=turn, name=turn[0], daemon=True)
            for turn in (("predictions", self._predict), ("check", self._check))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()

    def changed(self) -> None:
        """Tell that labels or vectors are other ones now."""
        with self._wake:
            self._due = self.busy = True
            self._wake.notify_all()

    def settled(self, seconds: float = 120.0) -> Found | None:
        """Wait until the predictions have learned from all labels there are, and return them."""
        with self._wake:
            if not self._wake.wait_for(lambda: self._ended or not self.busy, seconds):
                raise Conflict("the predictions are still being computed: try again in a moment")
        return self.opinion.found

    def _repeat(self, name: str, turn: Callable[[], None]) -> None:
        flag = "_due" if name == "predictions" else "_check_due"
        if name == "check":
            in_the_background()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ended or getattr(self, flag))
                if self._ended:
                    return
                setattr(self, flag, False)
            try:
                turn()
                self.problem = None
            except Exception as error:  # whatever it is, the labels are safe and labelling goes on
                self.problem = f"the predictions could not be computed: {type(error).__name__}: {error}"[:500]
                self._tell("problem")
            if name == "predictions":
                with self._wake:
                    self.busy = self._due
                    self._wake.notify_all()

    def _labels(self) -> Snapshot:
        with self._alone:
            return self._session.snapshot()

    def _predict(self) -> None:
        rows, vectors = self._vectors()
        held = self._session.predictor  # others may take it away: see Desk, when files change
        known = 0 if held is None else len(held.rows)
        fresh = len(rows) >= FEWEST and (len(rows) >= GROWTH * known or (self._finished() and len(rows) > known))
        if fresh:
            order = np.argsort(rows, kind="stable")
            self._session.see(vectors[order], rows[order])
        predictor, now, last = self._session.predictor, self._labels(), self.opinion
        if predictor is None or not predictor.possible(now.labels, predictor.rows):
            if last.found is not None:
                self.opinion, self.standing = Opinion(last.version + 1, now.revision), None
                self._tell("model")
            return
        if not fresh and last.found is not None and now.revision == last.revision and self._used == self._confirmed:
            return
        used = self._confirmed
        found = predictor.predict(now.labels, now.by_hand)
        before = last.before if now.revision == last.revision else None if last.found is None else last.found.label
        self._used, self.opinion = used, Opinion(last.version + 1, now.revision, found, before)
        self._tell("model")
        if self.standing is None or self.standing.revision != now.revision or fresh:
            with self._wake:
                self._check_due = True
                self._wake.notify_all()

    def _let_go_first(self) -> None:
        """Wait for a pause in the labelling, as long as a check takes: predictions need the processor more."""
        deadline = time.monotonic() + MOST_PATIENCE
        while self._takes > SHORT and time.monotonic() < deadline:
            before = self._session.book.revision
            with self._wake:
                self._wake.wait_for(lambda: self._ended, min(self._takes, LONGEST_PAUSE))
            if self._ended or self._session.book.revision == before:
                return

    def _check(self) -> None:
        self._let_go_first()
        predictor, now = self._session.predictor, self._labels()
        if predictor is None or not predictor.possible(now.labels, predictor.rows):
            return
        started = time.monotonic()
        expected = predictor.check(now.labels, now.by_hand)
        self._takes = time.monotonic() - started
        hand = int((now.by_hand & (now.labels != FREE))[predictor.rows].sum())
        share = hand / len(predictor.rows)
        low, middle, high = (share + (1 - share) * expected[place] for place in (1, 0, 2))
        last = self.standing
        with self._wake:  # from here on, predictions are due: whoever sees the check sees that, too
            self._confirmed += 1
            self._due = self.busy = True
            self.standing = Standing(
                now.revision, (middle, low, high), last.more if last else 0, last.gain if last else None
            )
            self._wake.notify_all()
        self._tell("checked")

        def outdated() -> bool:
            return self._ended or self._session.book.revision != now.revision

        with self._wake:  # what more labels would bring is asked in a pause, and takes several times as long
            if self._wake.wait_for(outdated, min(PAUSES * self._takes, MOST_PATIENCE)):
                return
        slope = predictor.slope(now.labels, now.by_hand, stop=outdated)
        if not outdated() and self.standing is not None:
            more = max(LEAST_MORE, round(MORE * hand, -1))
            self.standing = replace(
                self.standing, more=int(more), gain=(1 - share) * gain(expected[0], slope, hand, int(more))
            )
            self._tell("checked")


def advice(state: str, standing: Standing | None) -> tuple[str, bool]:
    """One or two sentences on how good it is and whether to go on; and whether one can stop."""
    if state == "no-labels":
        return "Give a few images of each class a label: every label teaches the rest.", False
    if state == "one-class":
        return "Now label an image of another class: with two classes, all other images get a label.", False
    if state == "learning":
        return "Learning from the labels: the other images get theirs in a moment.", False
    if standing is None:
        return "Finding out how good it is ...", False
    middle, low, high = standing.accuracy
    text = f"About {_percent(middle)} % of the images are labelled rightly ({_percent(low)} to {_percent(high)} %)."
    if standing.gain is None:
        return text, False
    points = 100 * standing.gain
    if standing.gain < LITTLE:
        return (
            f"{text} {standing.more} more labels would bring less than {100 * LITTLE:.1g} points: you can stop.",
            True,
        )
    return f"{text} {standing.more} more labels would bring about {points:.1f} points.", False


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
