"""Play a person who labels with the page of the studio, and count what it takes.

    python tests/studio/person.py clothing.zip groceries.zip

An archive has one folder per class. The person knows the class of an image only while it is on the screen, and does
what the page offers; every key, click, drag and screen that is scrolled is one action, and takes a second:

1. Names: a list of the classes is pasted into "Add a class" (click, Ctrl V, Enter), or each is typed when its first
   image comes (``--names typed``: one action for each letter, and Enter).
2. "Label next": a key for each of the first images, four times as many as there are classes.
3. The grid, of what has no label by hand, sorted by class with likely wrong ones first, zoomed out, a screen at a time.
   A wrong image gets the key of its class, pressed while the pointer is on it; where several of one class stand side by
   side in a row, each row of them is dragged over (Ctrl adds), and one key labels them all. After every label all
   others are found anew. A screen without a wrong image is accepted as a whole (a drag and Shift A), and scrolled.

It uses the classes behind the page (`Session`, `Look`) in one process: its order, its predictions, its queue.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handful.labelling.session import Session
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
        self._sight = Sight([""] * count, ~nothing, nothing, None, np.full(count, -1), lambda number: None)
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

    def accept(self, numbers: Numbers) -> None:
        """Drag over the screen, and Shift A."""
        self.act("accept", 2)
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
        (number,) = page.session.next_to_label(1)
        page.show([number])
        page.label([number], str(page.see([number])[0]))


def screens(page: Page, pointing: bool = True, accept: bool = True, doubtful: int = 0, stop: float = REACH[-1]) -> None:
    """Go through the grid, sorted by class, until so many are right (the script says when, no person would know)."""
    page.act("view", 3)  # the grid; the order; smaller images
    turn = 0
    while page.right < stop:
        page.act("view")
        through(page, "doubtful" if turn < doubtful else "unlabelled", pointing, accept, stop)
        turn += 1


def through(page: Page, show: str, pointing: bool, accept: bool, stop: float) -> None:
    """Go once through "Doubtful" or "Not by you"."""
    todo = [*page.classes().values()]
    while todo and page.right < stop:
        here = [todo.pop(0)]
        while todo and len(_rows(page, [*here, todo[0]], show)) <= page.window.rows:
            here.append(todo.pop(0))
        page.act("scroll")
        while page.right < stop and correct(page, _rows(page, here, show)[: page.window.rows], pointing):
            pass
        left = _rows(page, here, show)[: page.window.rows]
        if accept and left and page.right < stop:
            page.accept(np.concatenate(left))


def _rows(page: Page, here: list[int], show: str) -> list[Numbers]:
    """The rows of the grid, of some classes: each class begins a new row."""
    rows: list[Numbers] = []
    wide = page.window.columns
    for number in here:
        found = page.look.select(Query(show=show, class_id=number, sort="rival"))
        rows += [found[at : at + wide] for at in range(0, len(found), wide)]
    return rows


def correct(page: Page, rows: list[Numbers], pointing: bool) -> bool:
    """Correct some of what is wrong on the screen, with the fewest actions for each image; False if all is right."""
    page.show(np.concatenate(rows) if rows else [])
    runs: dict[str, list[Numbers]] = {}  # by class: parts of a row that are of it, and labelled otherwise
    for row in rows:
        truth = page.see(row)
        for part in np.split(row, np.flatnonzero(truth[1:] != truth[:-1]) + 1):
            if len(part) and page.shown[part[0]] != page.see(part[:1])[0]:
                runs.setdefault(str(page.see(part[:1])[0]), []).append(part)
    if not runs:
        return False
    best: tuple[float, str, list[Numbers]] = (0.0, "", [])
    for name, parts in runs.items():
        long = [part for part in parts if len(part) > 1] if pointing else parts
        worth = sum(map(len, long)) / (len(long) + 1)
        best = max(best, (worth, name, long), key=lambda one: one[0])
    worth, name, parts = best
    if pointing and worth <= 1:  # as many actions as images, or more: one at a time teaches more
        name, parts = next((name, parts[0][:1]) for name, parts in runs.items())
        page.label(parts, name)
    else:
        page.act("drag", len(parts))
        page.label(np.concatenate(parts), name)
    return True


def play(
    vectors: NDArray[np.floating],
    truth: NDArray[np.str_],
    *,
    window: Window = Window(),  # noqa: B008
    pasted: bool = True,
    queue: int = 4,
    head: Any = None,
    **how: Any,
) -> Page:
    """Label images with these vectors (n, dim) and classes (n,) until all but a few are right."""
    session = Session(vectors, head=head, distractors=False)
    session.see(vectors)
    page = Page(session, truth, window)
    if pasted:
        paste_names(page, sorted(set(truth.tolist())))
    label_next(page, queue * len(set(truth.tolist())))
    screens(page, **how)
    return page


def read(archive: Path) -> tuple[NDArray[np.float32], NDArray[np.str_], Any]:
    """Vectors and classes of the images in an archive, in random order, and the head for them."""
    from handful.embedders import DEFAULT, embed_files, load_embedder
    from handful.estimator.head import head_of
    from handful.labelling.sources import find_images

    files, found, _ = find_images(archive)
    vectors, names, _ = embed_files(load_embedder(DEFAULT), files, found)
    order = np.random.default_rng(0).permutation(len(names))
    return vectors[order], np.array([Path(name).parent.name for name in names])[order], head_of(DEFAULT, "auto")


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
    parser.add_argument("--queue", type=int, nargs="+", default=[4], help="images per class in the queue")
    parser.add_argument("--names", choices=["pasted", "typed"], nargs="+", default=["pasted", "typed"])
    parser.add_argument("--doubtful", type=int, nargs="+", default=[0], help="passes of the doubtful")
    parser.add_argument("--small", action="store_true", help="a window of 1280 x 720")
    parser.add_argument("--clicks", action="store_true", help="click and key, instead of a key at the pointer")
    parser.add_argument("--no-accept", action="store_true", help="screens are not accepted")
    given = parser.parse_args()
    for archive in given.archives:
        with zipfile.ZipFile(archive):
            vectors, truth, head = read(archive)
        how = {"pointing": not given.clicks, "accept": not given.no_accept, "head": head}
        window = SMALL_WINDOW if given.small else Window()
        typed = sum(len(name) + 1 for name in set(truth.tolist()))
        print(f"{archive.name}: {len(truth):,} images; one at a time {len(truth):,} actions, and {typed} to type names")
        for queue, names, doubtful in product(given.queue, given.names, given.doubtful):
            page = play(vectors, truth, window=window, pasted=names == "pasted", queue=queue, doubtful=doubtful, **how)
            print(line(f"queue {queue}, doubtful {doubtful} times, names {names}", page, len(truth)), flush=True)


if __name__ == "__main__":
    main()
