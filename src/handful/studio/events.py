"""What happens, told to all open pages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

MOST_WAITING = 64  # events that a page may be behind
MOST_PAGES = 32


class Events:
    """Any thread tells, and each listener hears in its own time; one that is too far behind misses events."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._listeners: dict[asyncio.Queue[tuple[str, Any] | None], asyncio.AbstractEventLoop] = {}
        self._ended = False

    def tell(self, kind: str, content: Any) -> None:
        with self._alone:
            listeners = list(self._listeners.items())
        for queue, loop in listeners:
            self._put(queue, loop, (kind, content))

    def end(self) -> None:
        """Close all pages' lines."""
        with self._alone:
            self._ended = True
            listeners = list(self._listeners.items())
        for queue, loop in listeners:
            self._put(queue, loop, None)

    def listen(self) -> asyncio.Queue[tuple[str, Any] | None] | None:
        """A queue of events, None at their end; no queue if there are too many listeners."""
        with self._alone:
            if len(self._listeners) >= MOST_PAGES or self._ended:
                return None
            queue: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue(MOST_WAITING)
            self._listeners[queue] = asyncio.get_running_loop()
        return queue

    def leave(self, queue: asyncio.Queue[tuple[str, Any] | None]) -> None:
        with self._alone:
            self._listeners.pop(queue, None)

    @staticmethod
    def _put(queue: asyncio.Queue[Any], loop: asyncio.AbstractEventLoop, entry: Any) -> None:
        def put() -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(entry)

        if not loop.is_closed():
            loop.call_soon_threadsafe(put)
