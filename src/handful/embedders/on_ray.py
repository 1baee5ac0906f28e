"""The same work on a Ray cluster: Ray Data hands the units to a pool of actors, which load the embedder once each.

Ray starts the actors of a machine that dies on another one, and gives their units to others. What arrives here is
written here, so the machines of the cluster need to reach the sources, but not the folder of the results.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from ..datasets.images import printable, quiet
from ..datasets.units import Unit
from ..errors import HandfulError, JobFailed
from ..machine import cores
from .base import reason
from .shards import Part, Task
from .work import Recipe, attempted

NO_RAY = "--ray needs Ray Data, which is not installed: pip install 'handful[ray]'"
WAVE = 10_000  # units that Ray is given together: it keeps a list of all of them
RETRIES = 10  # of a unit whose worker dies: a unit that kills each of its workers must come to an end


class Labourer:
    """An actor: loads the embedder once, and does the units that it is given."""

    def __init__(self, recipe: Recipe) -> None:
        self._quiet = quiet()
        self._quiet.__enter__()
        try:
            self._work = recipe.worker()
        except Exception as error:  # an embedder that is not installed there: one sentence, not Ray's many
            self._work = partial(_fails, str(error) if isinstance(error, HandfulError) else reason(error))

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        for text in batch["task"]:
            content = json.loads(str(text))
            task = Task(Unit.from_json(content["unit"]), content["part"], content["skip"])
            for part in attempted(self._work, task):
                whole = asdict(part) | {"about": json.dumps(part.about)}
                yield {name: [value] for name, value in whole.items()}


def _fails(why: str, task: Task) -> Iterator[Part]:
    raise HandfulError(f"a worker on Ray cannot start: {why}")


def by_ray(
    recipe: Recipe, tasks: list[Task], tick: Callable[[int], None], workers: int | None, address: str
) -> Generator[Part]:
    """The parts of all units, done on a Ray cluster, in no order."""
    with _connected(address, workers) as (ray, data):
        gpus = _gpus(ray, recipe.device)
        there = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0))
        if not there:
            raise HandfulError("the Ray cluster has no processor to work on: start a machine with CPUs")
        for start in range(0, len(tasks), WAVE):
            wave = tasks[start : start + WAVE]
            rows = [{"task": json.dumps(asdict(task) | {"unit": task.unit.to_json()})} for task in wave]
            count = min(workers or there, there, len(wave))
            pool = data.ActorPoolStrategy(
                min_size=1, max_size=count, initial_size=count, max_tasks_in_flight_per_actor=1
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray has no other way to bound retries, and warns of this one
                found = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                    Labourer, fn_constructor_args=(recipe,), batch_size=1, batch_format="numpy", zero_copy_batch=True,
                    compute=pool, num_cpus=1, num_gpus=gpus, max_task_retries=RETRIES,
                )  # fmt: skip
            try:
                for row in found.iter_rows():
                    about = json.loads(row["about"])
                    tick(int(about.get("seen", 0)))
                    yield Part(str(row["unit"]), str(row["name"]), bytes(row["content"]), about)
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise JobFailed(
                    f"Ray gave up ({reason(error)}); what is done is kept: run the same command again"
                ) from error


def _gpus(ray: Any, device: str) -> int:
    return int(device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1))


@contextmanager
def _connected(address: str, workers: int | None) -> Iterator[tuple[Any, Any]]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray: Any = import_module("ray")
        data: Any = import_module("ray.data")
    except ImportError as error:
        raise HandfulError(NO_RAY) from error
    ours = not ray.is_initialized()
    with redirect_stdout(sys.stderr):  # Ray prints there what it has to say of machines that die, also when it ends
        if ours:
            _start(ray, address, workers)
        try:
            for name in ("ray.data", "ray"):
                logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said in a sentence
            context = data.DataContext.get_current()
            context.enable_progress_bars = context.print_on_execution_start = False
            context.max_errored_blocks = -1  # what is lost is named at the end, and done by the next run
            yield ray, data
        finally:
            if ours:
                ray.shutdown()


def _start(ray: Any, address: str, workers: int | None) -> None:
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        options |= {"num_cpus": workers or cores(), "include_dashboard": False}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines()
        advice = "; '--ray local' starts one here" if address == "auto" else ""
        raise HandfulError(
            f"cannot reach a Ray cluster at '{address}': {printable(lines[0] if lines else '')}{advice}"
        ) from error
