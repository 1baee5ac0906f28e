"""Serve a studio on this machine."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from ..errors import HandfulError
from .desk import Desk
from .routes import application
from .security import Guard

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = ("0.0.0.0", "::")
BACKLOG, MOST_REQUESTS = 256, 400
KEPT_OPEN = 120  # seconds of silence on a line: one that is closed while a page asks loses the question


def serve(desk: Desk, host: str, port: int, ready: Callable[[str], None], *, browser: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        desk: what is served.
        host: the address to listen at.
        port: to listen at; 0 lets the system choose.
        ready: called with the address to open, which has the token, when it can be opened.
        browser: whether to open it.
    """
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    guard = Guard(application(desk), {*LOOPBACK, name, *(_own_names() if host in EVERYWHERE else ())}, port)
    shown = LOOPBACK[0] if host in EVERYWHERE else name
    address = f"http://{shown}:{port}/?token={guard.token}"
    config = uvicorn.Config(
        guard, http="h11", ws="none", lifespan="off", log_level="critical", access_log=False, proxy_headers=False,
        server_header=False, date_header=False, limit_concurrency=MOST_REQUESTS, timeout_graceful_shutdown=2,
        timeout_keep_alive=KEPT_OPEN,
    )  # fmt: skip
    server = _Server(config, desk)
    desk.start()
    ready(address)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _own_names() -> set[str]:
    """What other machines may call this one: its names and addresses."""
    found = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):
        name, others, addresses = socket.gethostbyname_ex(socket.gethostname())
        found |= {name, *others, *addresses}
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # sends nothing, but says which address would be used
        found.add(asked.getsockname()[0])
    return found


class _Server(uvicorn.Server):
    """Ends the pages' lines before it waits for their end."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._desk.events.end()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens before anybody is told of it."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise HandfulError(f"cannot listen at {host}, port {port} ({reason}): choose another --port") from error
    listener.set_inheritable(True)
    return listener
