"""Progress bars on standard error, so that standard output stays clean for results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from .terminal import Terminal, printable

Tick = Callable[[float], None]  # called with how many more are done
# Called with the episodes done, the loss since the last validation (its sum and its steps), the best validation
# accuracy so far and, after a validation, its accuracy; both in percent.
ShowTraining = Callable[[int, float, int, float, float | None], None]
messages = Terminal(stderr=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int], Tick]]:
    """A function that opens a bar, ``bar(what, total)``, and gives the function that moves it."""
    with _layout() as bars:

        def start(what: str, total: int) -> Tick:
            task = bars.add_task(printable(what), total=total, note="")
            return lambda done: bars.advance(task, done)

        yield start


@contextmanager
def rate_bar(every: float = 30.0) -> Iterator[Callable[[str, int], Tick]]:
    """As :func:`progress_bar`, with how many are done in a second; in a log file, a line every so many seconds."""
    with _layout(rate=True) as bars:

        def start(what: str, total: int) -> Tick:
            task = bars.add_task(printable(what), total=total, note="", rate="")
            started = said = time.monotonic()
            lock, done = threading.Lock(), 0.0

            def tick(more: float) -> None:
                nonlocal done, said
                with lock:
                    done, now = done + more, time.monotonic()
                    rate = done / max(now - started, 1e-9)
                    due = not messages.is_terminal and now - said >= every
                    said = now if due else said
                bars.update(task, advance=more, total=max(total, done), rate=f"{rate:,.0f}/s")
                if due:
                    left = _about(max(0.0, total - done) / max(rate, 1e-9))
                    messages.print(
                        f"{done:,.0f} of {max(total, done):,.0f} {what}, {rate:,.1f}/s, {left}", soft_wrap=True
                    )

            return tick

        yield start


@contextmanager
def training_bar(what: str, episodes: int) -> Iterator[ShowTraining]:
    """A bar over the episodes with loss, validation accuracy and time left; a line per validation in a log file."""
    with _layout() as bars:
        task = bars.add_task(printable(what), total=episodes, note="")
        validated = ""

        def show(episode: int, loss_sum: float, loss_steps: int, best: float, accuracy: float | None) -> None:
            nonlocal validated
            if accuracy is not None:
                validated = f"validation {accuracy:.1f} % (best {best:.1f} %)"
                if not messages.is_terminal:
                    messages.print(f"{what}: episode {episode} of {episodes}, {validated}")
            loss = f"loss {loss_sum / loss_steps:.3f}" if loss_steps else ""
            bars.update(task, completed=episode, note=f"{loss}  {validated}")

        yield show


@contextmanager
def grid_bar(cells: int, at_once: int = 1, what: str = "cells") -> Iterator[Callable[[str, bool], None]]:
    """A bar over the cells of a grid with time left; ``end(line, skipped)`` prints a line and moves it.

    ``at_once`` cells are run at a time. A cell that was finished before is ``skipped``: it counts as done, but its time
    says nothing of the others. ``what`` is what the cells are called.
    """
    started, ended, run = time.monotonic(), 0, 0
    with _layout(time_left=False) as bars:
        task = bars.add_task(what, total=cells, note="", until=None)

        def end(line: str, skipped: bool) -> None:
            nonlocal ended, run
            ended, run = ended + 1, run + (not skipped)
            now = time.monotonic()
            seconds = seconds_left(now - started, run, cells - ended, at_once)
            where = f"{ended} of {cells} {what}" + (f", {_about(seconds)}" if seconds is not None else "")
            # In a log file, where there is no bar, each line says how far it is.
            messages.print(line if messages.is_terminal or skipped else f"{line} ({where})", soft_wrap=True)
            bars.update(task, completed=ended, until=None if seconds is None else now + seconds)

        yield end


def seconds_left(elapsed: float, run: int, waiting: int, at_once: int) -> float | None:
    """Estimate the seconds until all cells have ended, at the moment that one ends; None as long as none has run.

    The other cells that are running by then are taken to be half done.

    >>> seconds_left(60, run=1, waiting=3, at_once=1)
    180.0
    >>> seconds_left(60, run=2, waiting=3, at_once=3)
    40.0
    """
    if not run:
        return None
    half_done = (min(at_once, waiting + 1) - 1) / 2
    return elapsed / (run + half_done) * (waiting - half_done)


class _CellsLeft(ProgressColumn):
    """Time left as it was estimated when the last cell ended, counted down since.

    Cells end minutes apart: rich's own estimate, of the last half minute, would know nothing.
    """

    def render(self, task: Task) -> Text:
        until = task.fields.get("until")
        return Text("" if until is None else _about(until - time.monotonic()))


def _about(seconds: float) -> str:
    return f"about {timedelta(seconds=max(0, round(seconds)))} left"


def _layout(time_left: bool = True, rate: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        *((TextColumn("{task.fields[rate]}", markup=False),) if rate else ()),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if time_left else (_CellsLeft(),)),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    )
