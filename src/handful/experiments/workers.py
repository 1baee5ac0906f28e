"""The workers of a grid: how many, where, and on which device; processes of this machine or of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import joblib

from ..errors import HandfulError

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Workers:
    """Who works on the cells of a grid.

    Attributes:
        engine: ``local`` for processes of this machine, ``ray`` for a Ray cluster.
        jobs: cells at a time; by default as many as there are cores (or the cluster has), divided by ``threads``.
        threads: of PyTorch in each cell. They decide in which order numbers are summed: the same threads give the same
            numbers to the last bit, whatever the engine and the jobs.
        device: auto, cpu, cuda or mps.
        ray_address: of a running cluster; else ``RAY_ADDRESS``, else a Ray of our own on this machine.
    """

    engine: str = "local"
    jobs: int | None = None
    threads: int = 1
    device: str = "auto"
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise HandfulError(f"unknown engine '{self.engine}': choose one of {', '.join(ENGINES)}")
        for name, value in {"jobs": self.jobs, "threads": self.threads}.items():
            if value is not None and value < 1:
                raise HandfulError(f"{name} must be at least 1, got {value}")

    @property
    def at_once(self) -> int:
        """Cells at a time on this machine."""
        return self.jobs or max(1, joblib.cpu_count() // self.threads)

    @contextmanager
    def pool(self, cells: int) -> Iterator[tuple[int, tuple[type[Exception], ...]]]:
        """Make joblib use the engine: gives the number of jobs and the errors that mean a lost worker."""
        if self.engine == "local":
            with joblib.parallel_config(backend="loky"):
                yield min(self.at_once, cells), (BrokenProcessPool,)
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
            _start_ray(ray, self.at_once, self.threads, self.ray_address)
        try:
            there = int(ray.cluster_resources().get("CPU", 0)) // self.threads
            wanted = max(2, min(self.jobs or there, cells))  # joblib makes no pool for one
            if wanted > there:
                raise HandfulError(
                    f"{wanted} jobs of {self.threads} threads do not fit on a Ray cluster of "
                    f"{there * self.threads} CPUs: lower --jobs or --threads"
                )
            register_ray()
            with joblib.parallel_config(backend="ray", ray_remote_args={"num_cpus": self.threads}):
                yield min(self.jobs or there, cells), (ray.exceptions.RayError,)
        finally:
            if ours:
                ray.shutdown()


LOCAL = Workers()  # as many processes as this machine has cores


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
