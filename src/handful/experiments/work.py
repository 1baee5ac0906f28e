"""What a worker of a grid does: take one cell after the other, train and measure it, leave the outcome in a file."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ..datasets import SPLITS
from ..errors import HandfulError, Interrupted
from ..io import write_json
from ..machine import keep_memory
from ..progress import messages
from ..runs.config import RunConfig
from ..runs.evaluation import Embedded, evaluate_run
from ..runs.folder import load_images
from ..runs.results import Result, measured
from ..runs.training import train
from .cell import Cell, Outcome, finished, worked, write_measured

STOP, ENDED = "stop", ".ended"  # a file, and what the names of files end in


@dataclass(frozen=True)
class Session:
    """What a grid and its workers, perhaps on other machines, share while it runs.

    Attributes:
        folder: of the grid.
        path: a folder in it for the files by which they communicate.
        threads: of PyTorch in each worker.
        device: auto, cpu, cuda or mps.
    """

    folder: Path
    path: Path
    threads: int = 1
    device: str = "auto"

    def taken(self, name: str) -> Path:
        """The file that is there from the moment that a worker takes a cell."""
        return self.path / f"{name}.taken"

    def stopping(self) -> bool:
        return (self.path / STOP).exists() or not self.path.exists()

    def check_stop(self) -> None:
        if self.stopping():
            raise Interrupted("stopped")


def check_fingerprint(config: RunConfig, found: str) -> None:
    if found != config.fingerprint:
        raise HandfulError(
            f"the training images of '{config.dataset}' are not those that the grid was made for "
            f"(fingerprint {found}, expected {config.fingerprint})"
        )


def work(cells: list[Cell], session: Session) -> None:
    """Take cells that no other worker has taken, one after the other, until there are none."""
    keep_memory()
    torch.set_num_threads(session.threads)
    messages.quiet = True  # what there is to say of the data has been said once
    for cell in cells:
        try:
            session.check_stop()
            session.taken(cell.name).touch(exist_ok=False)
            outcome = end_of(cell, session)
        except FileExistsError:
            continue
        except (Interrupted, KeyboardInterrupt, FileNotFoundError):  # the last one: the session's folder was removed
            return
        write_json(session.path / f"{cell.name}{ENDED}", outcome.to_json())


def end_of(cell: Cell, session: Session) -> Outcome:
    """Train and evaluate one cell. Whatever goes wrong is an outcome; only the end of the process is not."""
    try:
        with _claimed(session.folder / f".{cell.name}.lock", session):
            results = finished(cell, session.folder)  # by another process that runs the same grid
            if results is None:
                results = _train_and_evaluate(cell, session)
        return Outcome(cell.name, results)
    except Interrupted:
        raise
    except HandfulError as error:
        return Outcome(cell.name, reason=str(error))
    except OSError as error:  # a full disk, or a folder that was removed meanwhile
        where = f": {error.filename}" if error.filename else ""
        return Outcome(cell.name, reason=f"{error.strerror or error}{where}")
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return Outcome(cell.name, reason=reason, traceback=traceback.format_exc())


def _train_and_evaluate(cell: Cell, session: Session) -> list[Result]:
    started = time.perf_counter()
    run, device = session.folder / cell.name, session.device
    train_images, validation_images = (load_images(cell.config, split) for split in SPLITS[:2])
    check_fingerprint(cell.config, train_images.fingerprint())

    def observe(*_: object) -> None:
        if session.stopping():
            _request_stop()

    def tick(what: str, total: int) -> Callable[[float], None]:
        return lambda done: session.check_stop()

    if not cell.given:
        train(cell.config, run, train_images, validation_images, resume=True, accelerator=device, observe=observe)
    known, embedded, before = measured(run), Embedded(), worked(run)
    for wanted in cell.measurements:
        if wanted.key() not in known:
            known[wanted.key()] = evaluate_run(
                run, wanted.protocol, device=device, bar=tick, embedded=embedded, **wanted.choice()
            )
            seconds = before + time.perf_counter() - started
            write_measured(run, cell, known, session.threads, round(seconds, 3))
    return [known[wanted.key()] for wanted in cell.measurements]


def _request_stop() -> None:
    """Ask the training that called us to save and stop, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        raise Interrupted("stopped")  # no signals here: it goes on from its last checkpoint
    with suppress(KeyboardInterrupt):  # Ctrl-C has reached this process as well, and training knows
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def _claimed(lock: Path, session: Session) -> Iterator[None]:
    """This cell is ours, once a process that may be at it is done."""
    claim = FileLock(lock)
    while True:
        try:
            claim.acquire(timeout=1)
            break
        except Timeout:
            session.check_stop()
    try:
        yield
    finally:
        claim.release()
