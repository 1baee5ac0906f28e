"""Grids of independent runs: many trainings and their evaluations, in processes of this machine or on a Ray cluster.

A cell (:mod:`.cell`) is plain data, and all that it leaves behind is in files: its run folder, which training can
resume, and ``cell.json``. So a worker may die at any moment. What is finished is on disk and is skipped; the rest is
handed out again, and a half-trained run goes on to the weights that it would have had. A cell whose folder was removed
is done again. A grid that was killed leaves its folder ``.running-*``, of which the next one takes no notice.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import joblib

from ..datasets import SPLITS
from ..datasets.base import Bar, no_bar
from ..errors import HandfulError, Interrupted
from ..io import read_json
from ..progress import messages
from ..runs.folder import load_images
from ..runs.training import stop_requests
from .cell import Cell, Outcome, finished
from .work import ENDED, STOP, Session, check_fingerprint, work
from .workers import LOCAL, Workers

RETRIES = 2  # how often a cell whose worker was killed is tried again
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a folder on every system, and no way out of the grid's

Report = Callable[[Outcome], None]  # called for each cell as it ends


def run_grid(
    cells: Sequence[Cell],
    folder: Path,
    workers: Workers = LOCAL,
    *,
    report: Report | None = None,
    bar: Bar = no_bar,
    fingerprint: str | None = None,
) -> list[Outcome]:
    """Train and evaluate every cell in ``folder/<name>``, several at a time; finished ones are skipped.

    A cell that fails is in the outcomes, and the others go on. One whose worker was killed is tried again, the last
    time alone, so that no cell is given up for what another did to the pool.

    Args:
        cells: what to run.
        folder: of the grid; on a cluster, on a file system that all machines share.
        workers: how many, where, and on which device.
        report: called for each cell as it ends.
        bar: shows the preparation of the data.
        fingerprint: of the training images of all cells, if the caller has loaded their data: it is not loaded again.

    Raises:
        HandfulError: if the folder holds cells with other settings.
        Interrupted: after Ctrl-C (or SIGTERM), when the running cells have saved themselves.
    """
    _check(cells)
    folder = folder.resolve()  # workers may be started elsewhere
    outcomes: dict[str, Outcome] = {}

    def end(outcome: Outcome) -> None:
        outcomes[outcome.name] = outcome
        if report:
            report(outcome)

    for cell in cells:
        if (results := finished(cell, folder)) is not None:
            end(Outcome(cell.name, results, skipped=True))
    waiting = [cell for cell in cells if cell.name not in outcomes]
    if waiting:
        _prepare(waiting, bar, fingerprint)
        folder.mkdir(parents=True, exist_ok=True)
        _work_off(waiting, folder, workers, end)
        if len(outcomes) < len(cells):
            raise Interrupted(
                f"stopped with {len(outcomes)} of {len(cells)} cells done, the others are saved in {folder}; "
                "run the same command again to resume"
            )
    return [outcomes[cell.name] for cell in cells]


def _check(cells: Sequence[Cell]) -> None:
    for cell in cells:
        if not _NAME.fullmatch(cell.name):
            raise HandfulError(f"'{cell.name}' cannot name a cell: use letters, digits, dots, dashes and underscores")
    # Some file systems do not tell capitals from small letters.
    name, count = Counter(cell.name.casefold() for cell in cells).most_common(1)[0] if cells else ("", 0)
    if count > 1:
        raise HandfulError(f"{count} cells are called '{name}': each needs a folder of its own")


def _prepare(cells: list[Cell], bar: Bar, fingerprint: str | None) -> None:
    """Decode the data once, before many processes want them; notice here what would fail in each."""
    seen: dict[str, str] = {}
    for config in (cell.config for cell in cells):
        if fingerprint is not None:
            check_fingerprint(config, fingerprint)
            continue
        key = json.dumps([config.dataset, config.data, config.data_options, config.image_size, config.channels])
        if key not in seen:
            images = {split: load_images(config, split, bar=bar) for split in SPLITS}
            seen[key] = images["train"].fingerprint()
        check_fingerprint(config, seen[key])


def _work_off(waiting: list[Cell], folder: Path, workers: Workers, end: Report) -> None:
    """Start workers and have the cells worked off, until each has ended or a stop is wanted."""
    with (
        tempfile.TemporaryDirectory(prefix=".running-", dir=folder, ignore_cleanup_errors=True) as path,
        workers.pool(len(waiting)) as (jobs, lost),
        stop_requests(_StopFile(Path(path, STOP))) as stop,  # after Ray, which handles SIGTERM its own way
        suppress(KeyboardInterrupt),  # the second Ctrl-C
    ):
        session = Session(folder, Path(path), workers.threads, workers.device)
        tries: Counter[str] = Counter()
        while waiting and not stop.is_set():
            waiting = _round(waiting, tries, session, jobs, lost, end)


def _round(
    waiting: list[Cell],
    tries: Counter[str],
    session: Session,
    jobs: int,
    lost: tuple[type[Exception], ...],
    end: Report,
) -> list[Cell]:
    """Run cells until none is left or a worker is lost; gives those that are still to be run.

    A dead worker takes its pool with it, and the pool does not say which worker it was. All cells that were running are
    suspects: they may run together with others once more, and then alone, when what happens is their own doing.

    Args:
        waiting: the cells that have not ended.
        tries: how often each has lost its worker; counted here.
        session: what is shared with the workers.
        jobs: cells at a time.
        lost: the errors that mean a lost worker.
        end: called for each cell as it ends.
    """
    batch = [cell for cell in waiting if tries[cell.name] < RETRIES] or waiting[:1]
    workers = min(jobs, len(batch))
    trouble = "was asked to stop"
    with _watched(session, end) as ended:
        try:
            # As many calls as workers, and each takes cell after cell: Ray's pool would deal out the cells in turn,
            # and leave workers idle. One job would run in this very process, and its end would be ours.
            joblib.Parallel(n_jobs=max(2, workers), batch_size=1, pre_dispatch="all")(
                joblib.delayed(work)(batch, session) for _ in range(workers)
            )
        except lost as error:
            trouble = f"was killed or ran out of memory ({type(error).__name__})"
    waiting = [cell for cell in waiting if cell.name not in ended]
    if (session.path / STOP).exists():
        return waiting
    suspects = [cell for cell in waiting if session.taken(cell.name).exists()] or ([] if ended else batch)
    if suspects:
        names = ", ".join(cell.name for cell in suspects)
        messages.print(f"a worker {trouble} while these were running: {names}", highlight=False, soft_wrap=True)
    for cell in suspects:
        tries[cell.name] += 1
        session.taken(cell.name).unlink(missing_ok=True)
        if tries[cell.name] > RETRIES:
            end(Outcome(cell.name, reason=f"its worker {trouble}, {tries[cell.name]} times"))
    return [cell for cell in waiting if tries[cell.name] <= RETRIES]


@contextmanager
def _watched(session: Session, end: Report) -> Iterator[set[str]]:
    """Report the cells that end meanwhile, as they end; gives their names.

    They come as files: joblib hands nothing over early with Ray, nor what was done when a pool broke.
    """
    ended: set[str] = set()
    over = threading.Event()

    def collect() -> None:
        for path in sorted(session.path.glob(f"*{ENDED}")):
            outcome = Outcome.from_json(read_json(path))
            path.unlink(missing_ok=True)
            ended.add(outcome.name)
            end(outcome)

    def watch() -> None:
        while not over.wait(0.2):
            collect()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()
        collect()


class _StopFile(threading.Event):
    """An event that processes on other machines see as well."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def is_set(self) -> bool:
        return self.path.exists()

    def set(self) -> None:
        self.path.touch()
        messages.print("stopping: running cells save themselves; Ctrl-C once more does not wait", highlight=False)
