"""Embed very many images into a folder of vectors: by threads of this machine, or by workers on Ray."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..datasets.base import Bar, no_bar
from ..datasets.images import printable, quiet
from ..datasets.units import UNIT, plan
from ..errors import HandfulError, Interrupted
from ..machine import cores
from ..progress import Tick
from . import DEFAULT, load_embedder
from .base import Embedder
from .gather import Gatherer
from .origin import Origin
from .precomputed import Precomputed
from .shards import Part, ShardFolder, Task
from .vectors import ENDING, checksums, npy_bytes
from .work import Engine, Recipe, Worker, attempted, made


@dataclass(frozen=True)
class EmbedRecipe:
    """Vectors of an embedder."""

    embedder: str
    device: str
    size: int

    def worker(self, tick: Callable[[int], None] | None = None, stop: threading.Event | None = None) -> Worker:
        gather = Gatherer(image_embedder(self.embedder, self.device), self.size, tick, stop)

        def parts(task: Task) -> Iterator[Part]:
            for found in gather(task):
                yield made(task, found, npy_bytes(found.vectors), {
                    "digests": b"".join(found.digests).hex(),
                    "checksums": checksums(found.digests, found.vectors).hex(),
                })  # fmt: skip

        return parts


@dataclass
class Outcome:
    """What became of the images.

    Attributes:
        images: how many have a result, of this run.
        before: units that were done before, out of
        units: all of them.
        broken: images that cannot be read, with the reason.
        problems: sources that cannot be read, or not to their end, with a sentence.
        seconds: that the work took.
        removed: shards of images that have changed since.
    """

    units: int
    before: int
    images: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    removed: int = 0

    @property
    def rate(self) -> float:
        return (self.images + len(self.broken)) / max(self.seconds, 1e-9)


def embed_sources(
    sources: Sequence[str | Path],
    out: str | Path,
    embedder: str = DEFAULT,
    *,
    device: str = "auto",
    workers: int | None = None,
    ray: str | None = None,
    size: int = UNIT,
    bar: Bar = no_bar,
) -> Outcome:
    """Embed images into a folder of vectors, which :class:`handful.VectorFolder` opens. Called again, it goes on.

    Args:
        sources: folders, .zip, .tar (WebDataset's layout), .parquet and .arrow files, images, and .txt lists of such;
            paths, or URLs that fsspec opens.
        out: the folder; new, empty, or of the same embedder.
        embedder: a name of :mod:`handful.embedders`.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        workers: threads, or workers on Ray; None takes all that there are.
        ray: None for threads of this machine; else the address of a Ray cluster, ``auto`` for the one that this
            machine belongs to, ``local`` for one that is started for this call.
        size: images of a shard, about.
        bar: a progress bar.

    Raises:
        HandfulError: if there is nothing to embed, or the folder or the embedder cannot be used.
        Interrupted: on Ctrl-C; what was done is kept.
    """
    loaded = image_embedder(embedder, device)
    folder = ShardFolder(Path(out), ENDING, {"embedder": asdict(Origin.of(loaded)), "size": size})
    if not loaded.key and folder.path.is_dir() and folder.names():
        raise HandfulError(f"whether the code of {loaded.name} has changed is not known: choose a new folder for --out")
    return run(EmbedRecipe(embedder, device, size), sources, folder, workers=workers, ray=ray, bar=bar)


def run(
    recipe: Recipe,
    sources: Sequence[str | Path],
    folder: ShardFolder,
    *,
    workers: int | None = None,
    ray: str | None = None,
    bar: Bar = no_bar,
) -> Outcome:
    """Do what is left to do of all units, and write it shard by shard."""
    found = plan([str(source) for source in sources], recipe.size)
    with folder.alone():
        tasks = folder.waiting(found.units)
        outcome = Outcome(len(found.units), len(found.units) - len(tasks), problems=dict(found.problems))
        outcome.broken |= found.skipped
        outcome.problems |= folder.problems(found.units)
        started = time.monotonic()
        try:
            if tasks:
                tick = bar("images", max(1, replace(found, units=[task.unit for task in tasks]).images))
                _work(recipe, tasks, folder, outcome, _engine(workers, ray), tick)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; what was done is in {folder.path}: run the same command again") from None
        outcome.seconds = time.monotonic() - started
        if not outcome.problems:
            outcome.removed = folder.tidy(found.units)
    return outcome


def _engine(workers: int | None, ray: str | None) -> Engine:
    if ray is None:
        return lambda recipe, tasks, tick: by_threads(recipe, tasks, tick, workers)
    from .on_ray import by_ray  # Ray is not always installed

    return lambda recipe, tasks, tick: by_ray(recipe, tasks, tick, workers, ray)


def _work(recipe: Recipe, tasks: list[Task], folder: ShardFolder, outcome: Outcome, engine: Engine, tick: Tick) -> None:
    units, ended = {task.unit.key: task.unit for task in tasks}, set[str]()
    with closing(engine(recipe, tasks, tick)) as parts:
        for part in parts:
            about = part.about
            if "fatal" in about:
                raise HandfulError(about["fatal"])
            if about.get("last") or "unreachable" in about:
                ended.add(part.unit)
            if problem := about.get("unreachable") or about.get("problem"):
                outcome.problems[units[part.unit].source] = problem
            if "unreachable" in about:
                continue
            folder.write(part)
            outcome.images += about["images"]
            outcome.broken |= about["broken"]
    for unit in (unit for key, unit in units.items() if key not in ended):
        where = f", from {printable(unit.names[0])} on," if unit.names else ""
        said = f"{printable(unit.source)}{where} was not finished, as its workers died: run the command again"
        outcome.problems.setdefault(unit.source, said)


def by_threads(
    recipe: Recipe, tasks: list[Task], tick: Callable[[int], None], workers: int | None = None
) -> Generator[Part]:
    """The parts of all units, done by threads of this process, in no order."""
    stop, todo = threading.Event(), iter(tasks)
    done: queue.Queue[Part | None] = queue.Queue(maxsize=2 * (workers or cores()))
    lock, work = threading.Lock(), recipe.worker(tick, stop)

    def labour() -> None:
        try:
            while not stop.is_set():
                with lock:
                    task = next(todo, None)
                if task is None:
                    return
                for part in attempted(work, task):
                    done.put(part)
        finally:
            done.put(None)

    threads = [threading.Thread(target=labour, daemon=True) for _ in range(min(workers or cores(), len(tasks)))]
    with quiet():
        for thread in threads:
            thread.start()
        try:
            left = len(threads)
            while left:
                part = done.get()
                if part is None:
                    left -= 1
                else:
                    yield part
        finally:
            stop.set()
            while any(thread.is_alive() for thread in threads):  # they may be waiting to hand something over
                try:
                    done.get(timeout=0.05)
                except queue.Empty:
                    continue


def image_embedder(name: str, device: str) -> Embedder:
    """An embedder that takes images."""
    loaded = load_embedder(name, device)
    if isinstance(loaded, Precomputed):
        raise HandfulError(f"{name} holds vectors, and embeds no images: name another --embedder")
    return loaded
