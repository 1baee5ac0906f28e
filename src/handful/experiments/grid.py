"""Grids of independent runs: many trainings and their evaluations, in processes of this machine or on a Ray cluster.

A cell (:mod:`.cell`) is plain data, and all that it leaves behind is in files: its run folder, which training can
resume, and ``cell.json``. So a worker may die at any moment. What is finished is on disk and is skipped; the rest is
handed out again, and a half-trained run goes on to the weights that it would have had. A cell whose folder was removed
is done again. A grid that was killed leaves its folder ``.running-*``, of which the next one takes no notice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import joblib
import torch
from filelock import FileLock, Timeout

from ..datasets import SPLITS
from ..datasets.base import Bar, no_bar
from ..errors import HandfulError, Interrupted
from ..io import read_json, write_json
from ..machine import keep_memory
from ..progress import messages
from ..runs.config import RunConfig
from ..runs.folder import load_images
from ..runs.results import Embedded, Result, evaluate_run, measured
from ..runs.training import stop_requests, train
from .cell import Cell, Outcome, finished, worked, write_measured

ENGINES = ("local", "ray")
RETRIES = 2  # how often a cell whose worker was killed is tried again
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a folder on every system, and no way out of the grid's


Report = Callable[[Outcome], None]  # called for each cell as it ends


def run_grid(
    cells: Sequence[Cell],
    folder: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    threads: int = 1,
    device: str = "auto",
    ray_address: str | None = None,
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
        engine: ``local`` for processes of this machine, ``ray`` for a Ray cluster.
        jobs: cells at a time; by default as many as there are cores (or the cluster has, divided by ``threads``).
        threads: of PyTorch in each cell. They decide in which order numbers are summed: the same threads give the same
            numbers to the last bit, whatever the engine and the jobs.
        device: auto, cpu, cuda or mps.
        ray_address: of a running cluster; else ``RAY_ADDRESS``, else a Ray of our own on this machine.
        report: called for each cell as it ends.
        bar: shows the preparation of the data.
        fingerprint: of the training images of all cells, if the caller has loaded their data: it is not loaded again.

    Raises:
        HandfulError: if the folder holds cells with other settings.
        Interrupted: after Ctrl-C (or SIGTERM), when the running cells have saved themselves.
    """
    _check(cells, engine, jobs, threads)
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
        with (
            tempfile.TemporaryDirectory(prefix=".running-", dir=folder, ignore_cleanup_errors=True) as session,
            _engine(engine, jobs, threads, len(waiting), ray_address) as (jobs, lost),
            stop_requests(_StopFile(Path(session, "stop"))) as stop,  # after Ray, which handles SIGTERM its own way
            suppress(KeyboardInterrupt),  # the second Ctrl-C
        ):
            _run(waiting, folder, Path(session), stop, jobs, threads, device, lost, end)
        if len(outcomes) < len(cells):
            raise Interrupted(
                f"stopped with {len(outcomes)} of {len(cells)} cells done, the others are saved in {folder}; "
                "to go on, run the same command again"
            )
    return [outcomes[cell.name] for cell in cells]


def _check(cells: Sequence[Cell], engine: str, jobs: int | None, threads: int) -> None:
    if engine not in ENGINES:
        raise HandfulError(f"unknown engine '{engine}': choose one of {', '.join(ENGINES)}")
    for name, value in {"jobs": jobs, "threads": threads}.items():
        if value is not None and value < 1:
            raise HandfulError(f"{name} must be at least 1, got {value}")
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
            _check_fingerprint(config, fingerprint)
            continue
        key = json.dumps([config.dataset, config.data, config.data_options, config.image_size, config.channels])
        if key not in seen:
            images = {split: load_images(config, split, bar=bar) for split in SPLITS}
            seen[key] = images["train"].fingerprint()
        _check_fingerprint(config, seen[key])


def _check_fingerprint(config: RunConfig, found: str) -> None:
    if found != config.fingerprint:
        raise HandfulError(
            f"the training images of '{config.dataset}' are not those that the grid was made for "
            f"(fingerprint {found}, expected {config.fingerprint})"
        )


# --- in the process that hands out the cells


def _run(
    waiting: list[Cell],
    folder: Path,
    session: Path,
    stop: threading.Event,
    jobs: int,
    threads: int,
    device: str,
    lost: tuple[type[Exception], ...],
    end: Report,
) -> None:
    """Have the cells worked off until each has ended or a stop is wanted.

    A dead worker takes its pool with it, and the pool does not say which worker it was. All cells that were running are
    suspects: they may run together with others once more, and then alone, when what happens is their own doing.
    """
    tries: Counter[str] = Counter()
    while waiting and not stop.is_set():
        batch = [cell for cell in waiting if tries[cell.name] < RETRIES] or waiting[:1]
        workers = min(jobs, len(batch))
        trouble = "was asked to stop"
        with _watched(session, end) as ended:
            try:
                # As many calls as workers, and each takes cell after cell: Ray's pool would deal out the cells in turn,
                # and leave workers idle. One job would run in this very process, and its end would be ours.
                joblib.Parallel(n_jobs=max(2, workers), batch_size=1, pre_dispatch="all")(
                    joblib.delayed(_work)(batch, folder, session, threads, device) for _ in range(workers)
                )
            except lost as error:
                trouble = f"was killed or ran out of memory ({type(error).__name__})"
        waiting = [cell for cell in waiting if cell.name not in ended]
        if stop.is_set():
            return
        suspects = [cell for cell in waiting if _taken(session, cell.name).exists()] or ([] if ended else batch)
        if suspects:
            names = ", ".join(cell.name for cell in suspects)
            messages.print(f"a worker {trouble} while these were running: {names}", highlight=False, soft_wrap=True)
        for cell in suspects:
            tries[cell.name] += 1
            _taken(session, cell.name).unlink(missing_ok=True)
            if tries[cell.name] > RETRIES:
                end(Outcome(cell.name, reason=f"its worker {trouble}, {tries[cell.name]} times"))
        waiting = [cell for cell in waiting if tries[cell.name] <= RETRIES]


@contextmanager
def _watched(session: Path, end: Report) -> Iterator[set[str]]:
    """Report the cells that end meanwhile, as they end; gives their names.

    They come as files: joblib hands nothing over early with Ray, nor what was done when a pool broke.
    """
    ended: set[str] = set()
    over = threading.Event()

    def collect() -> None:
        for path in sorted(session.glob("*.ended")):
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


@contextmanager
def _engine(
    engine: str, jobs: int | None, threads: int, cells: int, address: str | None
) -> Iterator[tuple[int, tuple[type[Exception], ...]]]:
    """Make joblib use the engine: gives the number of jobs and the errors that mean a lost worker."""
    if engine == "local":
        jobs = min(jobs or max(1, joblib.cpu_count() // threads), cells)
        with joblib.parallel_config(backend="loky"):
            yield jobs, (BrokenProcessPool,)
        return
    # Before Ray is imported: no word to its makers, and no hiding of graphics cards that were not asked for.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray: Any = import_module("ray")
        register_ray: Any = import_module("ray.util.joblib").register_ray
    except ImportError as error:
        raise HandfulError("the engine 'ray' is not installed: pip install handful[ray]") from error
    ours = not ray.is_initialized()
    if ours:
        _start_ray(ray, jobs or max(1, joblib.cpu_count() // threads), threads, address)
    try:
        there = int(ray.cluster_resources().get("CPU", 0)) // threads
        wanted = max(2, min(jobs or there, cells))  # joblib makes no pool for one
        if wanted > there:
            raise HandfulError(
                f"{wanted} jobs of {threads} threads do not fit on a Ray cluster of {there * threads} CPUs: lower "
                "--jobs or --threads"
            )
        register_ray()
        with joblib.parallel_config(backend="ray", ray_remote_args={"num_cpus": threads}):
            yield min(jobs or there, cells), (ray.exceptions.RayError,)
    finally:
        if ours:
            ray.shutdown()


def _start_ray(ray: Any, jobs: int, threads: int, address: str | None) -> None:
    """Connect to a cluster, or start a Ray on this machine that is just large enough."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        # What travels are settings and results: the smallest object store will do.
        options |= {"num_cpus": max(2, jobs) * threads, "include_dashboard": False, "object_store_memory": 100 << 20}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise HandfulError(f"cannot reach a Ray cluster at '{address}': {reason}") from error


# --- in a worker


def _work(cells: list[Cell], folder: Path, session: Path, threads: int, device: str) -> None:
    """Take cells that no other worker has taken, one after the other, until there are none."""
    keep_memory()
    torch.set_num_threads(threads)
    messages.quiet = True  # what there is to say of the data has been said once
    for cell in cells:
        try:
            _check_stop(session)
            _taken(session, cell.name).touch(exist_ok=False)
            outcome = _end_of(cell, folder, session, threads, device)
        except FileExistsError:
            continue
        except (Interrupted, KeyboardInterrupt, FileNotFoundError):  # the last one: the session's folder was removed
            return
        write_json(session / f"{cell.name}.ended", outcome.to_json())


def _end_of(cell: Cell, folder: Path, session: Path, threads: int, device: str) -> Outcome:
    """Train and evaluate one cell. Whatever goes wrong is an outcome; only the end of the process is not."""
    try:
        with _claimed(folder / f".{cell.name}.lock", session):
            results = finished(cell, folder)  # by another process that runs the same grid
            if results is None:
                results = _train_and_evaluate(cell, folder / cell.name, session, threads, device)
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


def _train_and_evaluate(cell: Cell, run: Path, session: Path, threads: int, device: str) -> list[Result]:
    started = time.perf_counter()
    train_images, validation_images = (load_images(cell.config, split) for split in SPLITS[:2])
    _check_fingerprint(cell.config, train_images.fingerprint())

    def observe(*_: object) -> None:
        if _stopping(session):
            _request_stop()

    def tick(what: str, total: int) -> Callable[[float], None]:
        return lambda done: _check_stop(session)

    train(cell.config, run, train_images, validation_images, resume=True, accelerator=device, observe=observe)
    known, embedded, before = measured(run), Embedded(), worked(run)
    for wanted in cell.measurements:
        if wanted.key() not in known:
            known[wanted.key()] = evaluate_run(
                run, wanted.protocol, method=wanted.method, iterations=wanted.iterations, device=device, bar=tick,
                embedded=embedded,
            )  # fmt: skip
            seconds = before + time.perf_counter() - started
            write_measured(run, cell, known, threads, round(seconds, 3))
    return [known[wanted.key()] for wanted in cell.measurements]


def _request_stop() -> None:
    """Ask the training that called us to save and stop, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        raise Interrupted("stopped")  # no signals here: it goes on from its last checkpoint
    with suppress(KeyboardInterrupt):  # Ctrl-C has reached this process as well, and training knows
        signal.raise_signal(signal.SIGTERM)


def _stopping(session: Path) -> bool:
    return (session / "stop").exists() or not session.exists()


def _check_stop(session: Path) -> None:
    if _stopping(session):
        raise Interrupted("stopped")


@contextmanager
def _claimed(lock: Path, session: Path) -> Iterator[None]:
    """This cell is ours, once a process that may be at it is done."""
    claim = FileLock(lock)
    while True:
        try:
            claim.acquire(timeout=1)
            break
        except Timeout:
            _check_stop(session)
    try:
        yield
    finally:
        claim.release()


def _taken(session: Path, name: str) -> Path:
    """The file that is there from the moment that a worker takes a cell."""
    return session / f"{name}.taken"
