"""Play a person who labels with the page of the studio, and count what it takes.

    python tests/studio/person.py clothing.zip groceries.zip

An archive has one folder per class. The person knows the class of an image only while it is on the screen, and does
what the page offers; every key, click, drag and screen that is scrolled is one action, and takes a second:

1. Names: a list of the classes is pasted into "Add a class" (click, Ctrl V, Enter), or each is typed when its first
   image comes (``--names typed``: one action for each letter, and Enter).
2. "Label next": a key for each of the first images, three times as many as there are classes.
3. The grid, of what has no label by hand, sorted by "Class, alike together", zoomed out, a screen at a time. First only
   what saves most: images of one class that stand side by side are dragged over (a drag each, Ctrl adds) and labelled
   with one key, if that is more than an image an action. Then single ones as well: the key of the class, pressed while
   the pointer is on it. After every label all others are found anew. What is still wrong is dragged over, with what
   stands between, and Shift Space accepts the rest of the screen and goes on to the next.

It uses the classes behind the page (`Session`, `Look`) in one process: its order, its predictions, its queue.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handful.estimator.suggestions import suggest
from handful.labelling.session import Session
from handful.studio.layout import in_common_axes
from handful.studio.line import in_line
from handful.studio.look import Look, Query, Sight

REACH = (0.9, 0.95)
PAUSE = 10  # labels after which the person pauses
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """What fits into the grid of a window, as the page lays it out; images of 88 pixels, or of 150 with captions."""

    columns: int = 16
    rows: int = 8  # 1920 x 940 pixels inside the browser


SMALL_WINDOW = Window(10, 6)  # 1280 x 720


class Page:
    """What the page shows, and its actions, which are counted.

    Args:
        session: with vectors and without labels.
        truth: (n,) the class of each image: asked of what is on the screen (`see`), and to measure.
        window: how much of the grid is visible.
    """

    def __init__(self, session: Session, truth: NDArray[np.str_], window: Window) -> None:
        self.session, self.window, self._truth = session, window, truth
        count = len(truth)
        nothing = np.zeros(count, dtype=bool)
        self._points = in_common_axes(np.asarray(session._vectors, dtype=np.float32))
        self.line = in_line(self._points)
        self._sight = Sight([""] * count, ~nothing, nothing, None, np.full(count, -1), self.line, lambda number: None)
        self._screen: set[int] = set()
        self.actions: Counter[str] = Counter()
        self.labels = 0
        self.reached: dict[float, tuple[int, int]] = {}  # share -> actions, labels
        self.refresh()

    @property
    def count(self) -> int:
        return sum(self.actions.values())

    @property
    def size(self) -> int:
        return self.window.columns * self.window.rows

    def act(self, what: str, times: int = 1) -> None:
        self.actions[what] += times

    def refresh(self) -> None:
        """Let the model learn, and show its predictions; the accuracy is checked in pauses, as the studio does it."""
        session, book, now = self.session, self.session.book, self.session.snapshot()
        found = None
        if session.predictor is not None and session.predictor.possible(now.labels, session.predictor.rows):
            if now.revision % PAUSE == 0:
                session.predictor.check(now.labels, now.by_hand)
            found = session.predictor.predict(now.labels)
        self.look = Look(now.labels, found, book.is_label, None, self._sight)
        names = {one.id: one.name for one in book.classes.values()}
        self.shown = np.array([names.get(int(label), "") for label in self.look.label])
        self.right = float((self.shown == self._truth).mean())
        for share in REACH:
            if self.right >= share:
                self.reached.setdefault(share, (self.count, self.labels))

    def show(self, numbers: Numbers | list[int]) -> None:
        self._screen = {int(number) for number in numbers}
        assert len(self._screen) <= self.size

    def see(self, numbers: Numbers | list[int]) -> NDArray[np.str_]:
        """The right classes of images on the screen."""
        assert self._screen.issuperset(int(number) for number in numbers), "he cannot see these"
        return self._truth[numbers]

    def classes(self) -> dict[str, int]:
        return {one.name: one.id for one in self.session.book.classes.values()}

    def label(self, numbers: Numbers | list[int], name: str) -> None:
        """Press the key of a class, or type its name if it is new."""
        if name in self.classes():
            self.act("key")
        else:
            self.act("letter", len(name) + 1)
        self.session.label([int(number) for number in numbers], name)
        self.labels += len(numbers)
        self.refresh()

    def next_to_label(self) -> int:
        """The image that the queue asks for."""
        given, found = np.flatnonzero(self.look.given), self.look.found
        soft = np.ones((len(self._points), 1)) if found is None else np.asarray(found.model.label_distributions_)
        return int(suggest(self._points, soft, None, given, 1)[0])

    def accept(self, numbers: Numbers, drags: int) -> None:
        """Drag over what is to be left out, and Shift Space, which also turns to the next screen."""
        self.act("drag", drags)
        self.act("accept")
        free = numbers[~self.look.given[numbers]]
        self.session.book.accept(free.astype(np.int32), self.look.label[free], seen=True)
        self.labels += len(free)
        self.refresh()


def paste_names(page: Page, names: list[str]) -> None:
    page.act("paste names", 3)
    for name in names:
        page.session.book.add(name)


def label_next(page: Page, count: int) -> None:
    """Open "Label next", which asks for the class of one image after the other."""
    page.act("view")
    for _ in range(count):
        number = page.next_to_label()
        page.show([number])
        page.label([number], str(page.see([number])[0]))


def screens(page: Page, worth: tuple[float, ...] = (2.0, 1.3, 1.0), least: int = 24, stop: float = REACH[-1]) -> None:
    """Go through the grid until so many are right (the script says when, no person would know).

    Args:
        page: the page.
        worth: images for each action that a correction must bring, in each turn; the last holds for all further ones.
        least: right ones side by side that are worth a drag to accept them.
        stop: when to end.
    """
    page.act("view", 3)  # the grid; the order; smaller images
    turn = 0
    while page.right < stop:
        page.act("view")
        through(page, worth[min(turn, len(worth) - 1)], least, stop)
        turn += 1


def through(page: Page, worth: float, least: int, stop: float) -> None:
    """Go once through "Not by you"."""
    start: tuple[int, int] | None = (0, 0)  # id of a class and place in the line, from which on the screen shows
    while start is not None and page.right < stop:
        while page.right < stop and correct(page, _screen(page, start)[0], worth):
            pass
        sections, after = _screen(page, start)
        if page.right < stop and not finish(page, sections, least):
            page.act("scroll")
        start = after


def _screen(page: Page, start: tuple[int, int]) -> tuple[list[Numbers], tuple[int, int] | None]:
    """What is on the screen, by class, each in new rows; and where the next screen begins."""
    sections: list[Numbers] = []
    wide, rows = page.window.columns, page.window.rows
    for number in page.classes().values():
        found = page.look.select(Query(show="unlabelled", class_id=number, sort="alike"))
        found = found[page.line[found] >= start[1]] if number == start[0] else found
        if number < start[0] or not len(found):
            continue
        if rows <= 0:
            return sections, (number, 0)
        sections.append(found[: rows * wide])
        if len(found) > rows * wide:
            return sections, (number, int(page.line[found[rows * wide]]))
        rows -= -(-len(found) // wide)
    return sections, None


def correct(page: Page, sections: list[Numbers], worth: float) -> bool:
    """Correct some of what is wrong on the screen, with the fewest actions for each image; False if too few."""
    page.show(np.concatenate(sections) if sections else [])
    runs: dict[str, list[Numbers]] = {}  # by class: images of it side by side that are labelled otherwise
    for section in sections:
        truth = page.see(section)
        for part in np.split(section, np.flatnonzero(truth[1:] != truth[:-1]) + 1):
            if page.shown[part[0]] != page.see(part[:1])[0]:
                runs.setdefault(str(page.see(part[:1])[0]), []).append(part)
    best: tuple[float, str, list[Numbers]] = (0.0, "", [])
    for name, parts in runs.items():
        parts.sort(key=len, reverse=True)
        for many in range(1, len(parts) + 1):
            some = parts[:many]
            cost = 1 if many == 1 and len(some[0]) == 1 else many + 1  # a key at the pointer; drags, and a key
            best = max(best, (sum(map(len, some)) / cost, name, some), key=lambda one: one[0])
    gain, name, parts = best
    if gain < worth or not parts:
        return False
    if len(parts) > 1 or len(parts[0]) > 1:
        page.act("drag", len(parts))
    page.label(np.concatenate(parts), name)
    return True


def finish(page: Page, sections: list[Numbers], least: int) -> bool:
    """Leave out what is wrong, with what stands between, and accept the rest of the screen; False if too few."""
    screen = np.concatenate(sections) if sections else np.zeros(0, dtype=np.int64)
    page.show(screen)
    wrong = np.flatnonzero(page.shown[screen] != page.see(screen))
    kept, drags = [], 0
    ends = [-1, *wrong.tolist(), len(screen)]
    for before, after in pairwise(ends):
        if after - before - 1 >= least:
            kept.append(screen[before + 1 : after])
            drags += before >= 0
        elif after == len(screen):
            drags += before >= 0
    if not kept:
        return False
    page.accept(np.concatenate(kept), drags)
    return True


def play(
    vectors: NDArray[np.floating],
    truth: NDArray[np.str_],
    *,
    window: Window = Window(),  # noqa: B008
    pasted: bool = True,
    queue: int = 3,
    **how: Any,
) -> Page:
    """Label images with these vectors (n, dim) and classes (n,) until all but a few are right."""
    session = Session(vectors, distractors=False)
    session.see(vectors)
    page = Page(session, truth, window)
    if pasted:
        paste_names(page, sorted(set(truth.tolist())))
    label_next(page, queue * len(set(truth.tolist())))
    screens(page, **how)
    return page


def read(archive: Path) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Vectors and classes of the images in an archive, in random order."""
    from handful.datasets.files import find_images
    from handful.embedders import DEFAULT, embed_files, load_embedder

    found = find_images(archive)
    vectors, names, _ = embed_files(load_embedder(DEFAULT), found.files, found.names)
    order = np.random.default_rng(0).permutation(len(names))
    return vectors[order], np.array([Path(name).parent.name for name in names])[order]


def line(name: str, page: Page, total: int) -> str:
    out = io.StringIO()
    out.write(f"{name:44}")
    for share in REACH:
        actions, labels = page.reached.get(share, (0, 0))
        out.write(f"  {share:.0%}: {actions:4} actions ({actions / total:5.1%}), {labels:5} labels")
    return f"{out.getvalue()}  {dict(page.actions)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--queue", type=int, nargs="+", default=[3], help="images per class in the queue")
    parser.add_argument("--names", choices=["pasted", "typed"], nargs="+", default=["pasted", "typed"])
    parser.add_argument("--small", action="store_true", help="a window of 1280 x 720")
    given = parser.parse_args()
    for archive in given.archives:
        with zipfile.ZipFile(archive):
            vectors, truth = read(archive)
        window = SMALL_WINDOW if given.small else Window()
        typed = sum(len(name) + 1 for name in set(truth.tolist()))
        print(f"{archive.name}: {len(truth):,} images; one at a time {len(truth):,} actions, and {typed} to type names")
        for queue, names in product(given.queue, given.names):
            page = play(vectors, truth, window=window, pasted=names == "pasted", queue=queue)
            print(line(f"queue {queue}, names {names}", page, len(truth)), flush=True)


if __name__ == "__main__":
    main()
