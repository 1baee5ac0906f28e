"""Progress bars on standard error, so that standard output stays clean for results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .terminal import Terminal, printable

if TYPE_CHECKING:
    from .runs.config import RunConfig
    from .runs.episodes import Accuracy, Tick
    from .runs.training import Observer
    from .runs.training import Progress as TrainingProgress

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
def training_bar(what: str, config: RunConfig) -> Iterator[Observer]:
    """A bar over the episodes with loss, validation accuracy and time left; a line per validation in a log file."""
    with _layout() as bars:
        task = bars.add_task(printable(what), total=config.episodes, note="")
        validated = ""

        def observe(progress: TrainingProgress, accuracy: Accuracy | None) -> None:
            nonlocal validated
            if accuracy is not None:
                validated = f"validation {accuracy.mean:.1f} % (best {progress.best:.1f} %)"
                if not messages.is_terminal:
                    messages.print(f"{what}: episode {progress.episode} of {config.episodes}, {validated}")
            loss = f"loss {progress.loss_sum / progress.loss_steps:.3f}" if progress.loss_steps else ""
            bars.update(task, completed=progress.episode, note=f"{loss}  {validated}")

        yield observe


@contextmanager
def grid_bar(cells: int) -> Iterator[Callable[[str, bool], None]]:
    """A bar over the cells of a grid with time left; ``end(line, skipped)`` prints a line and moves it."""
    # Cells end minutes apart and several at once: rich's own estimate, of the last half minute, would know nothing.
    started, ended, run = time.monotonic(), 0, 0
    with _layout(time_left=False) as bars:
        task = bars.add_task("cells", total=cells, note="")

        def end(line: str, skipped: bool) -> None:
            nonlocal ended, run
            ended, run = ended + 1, run + (not skipped)
            messages.print(line, soft_wrap=True)
            seconds = (time.monotonic() - started) / run * (cells - ended) if run else None
            note = "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
            bars.update(task, completed=ended, note=note)

        yield end


def _layout(time_left: bool = True) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if time_left else ()),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    )
