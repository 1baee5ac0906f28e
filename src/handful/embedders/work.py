"""Work that is done unit by unit, wherever: how it is described, tried and handed over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from ..datasets.images import printable
from ..errors import HandfulError
from .base import reason
from .gather import Gathered, Stopped
from .shards import DAMAGED, LAST, Part, Task, shard_name

Worker = Callable[[Task], Iterator[Part]]


class Recipe(Protocol):
    """How the parts of units are made: plain values, which can be sent to another machine."""

    @property
    def device(self) -> str: ...
    @property
    def size(self) -> int: ...

    def worker(self, tick: Callable[[int], None] | None = None, stop: threading.Event | None = None) -> Worker:
        """Load what the work needs, once; several threads may call what is returned."""


Engine = Callable[[Recipe, list[Task], Callable[[int], None]], Generator[Part]]


def attempted(work: Worker, task: Task) -> Iterator[Part]:
    """The parts of a unit; if it cannot be done, a part that says so."""
    name = shard_name(task.unit, task.part)
    try:
        yield from work(task)
    except Stopped:
        return
    except OSError as error:
        why = error.strerror or printable(str(error))
        said = f"cannot read {printable(task.unit.source)}: {why}"
        yield Part(task.unit.key, name, b"", {"unreachable": said})
    except HandfulError as error:
        yield Part(task.unit.key, name, b"", {"fatal": str(error)})
    except Exception as error:  # of an embedder of the user's
        said = f"the work failed in {printable(task.unit.source)}: {reason(error)}"
        yield Part(task.unit.key, name, b"", {"fatal": said})


def made(task: Task, found: Gathered, content: bytes, more: dict[str, Any]) -> Part:
    """A part of a unit as it will be written."""
    about = {
        "unit": task.unit.key, "source": task.unit.source, "last": found.last, "seen": found.seen,
        "images": len(found.names), "problem": found.problem, "broken": found.broken, "names": found.names, **more,
    }  # fmt: skip
    end = "" if not found.last else LAST if found.problem is None else DAMAGED
    return Part(task.unit.key, shard_name(task.unit, found.part, end), content, about)
