"""Small pictures, and requests to a studio in this process, without a network."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
from PIL import Image

from handful.studio.desk import Desk
from handful.studio.routes import application
from handful.studio.security import Guard

COUNT, COLOURS = 40, {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (20, 60, 190), "grey": (120, 120, 120)}
PORT = 8123
GUARD = 600.0  # seconds after which a test that waits is given up


@dataclass(frozen=True)
class Answer:
    """Status, headers and content of an answer."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """Sends what the page of a studio would send: its cookie and its origin."""

    def __init__(self, app: Any, host: str, token: str, cookie: str) -> None:
        self.app, self.host, self.token, self.cookie = app, host, token, cookie

    def page_headers(self) -> dict[str, str]:
        return {"host": self.host, "origin": f"http://{self.host}", "cookie": f"{self.cookie}={self.token}"}

    def get(self, path: str, **more: Any) -> Answer:
        return self.send("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.send("POST", path, body, **more)

    def label(self, images: list[int], name: str | None) -> Answer:
        return self.post("/api/labels", {"images": images, "label": name})

    def state(self) -> dict[str, Any]:
        return dict(self.get("/api/state").json())

    def wait(self, there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The state, as soon as something is true of it."""
        deadline = time.monotonic() + GUARD
        while not there(state := self.state()):
            assert time.monotonic() < deadline, state
            time.sleep(0.01)
        return state

    def settled(self) -> dict[str, Any]:
        """The state when all images are embedded and predicted by all labels."""
        return self.wait(
            lambda state: (
                state["embedding"]["state"] == "done"
                and state["map"]["version"] >= 2
                and not state["model"]["busy"]
                and (state["model"]["version"] == 0 or state["model"]["checked"] or state["model"]["state"] != "ready")
            )
        )

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str | None] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send a request; a header that is None is left out."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        given: dict[str, str | None] = {**self.page_headers(), **(headers or {})}
        if body is not None or raw is not None:
            given = {"content-type": "application/json", **given}
        return asyncio.run(self._send(method, path, content, {k: v for k, v in given.items() if v is not None}))

    async def _send(self, method: str, path: str, content: bytes, headers: dict[str, str]) -> Answer:
        target, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(target), "raw_path": target.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "server": ("127.0.0.1", 0), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        parts, start = [], {}
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.sleep(GUARD)
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(parts))


def client_of(desk: Desk) -> Client:
    guard = Guard(application(desk), ("127.0.0.1", "localhost"), PORT)
    return Client(guard, f"127.0.0.1:{PORT}", guard.token, guard.cookie)


def picture(colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (48, 32), form: str = "JPEG") -> bytes:
    rng = np.random.default_rng(seed)
    pixels = np.clip(np.array(colour) + rng.normal(scale=25, size=(size[1], size[0], 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


class Colours:
    """An embedder: the mean colours of a 4 x 4 raster, about grey."""

    name, key, dim, image_size, channels = "colours", "", 48, 16, 3

    def embed(self, images: Any) -> Any:
        parts = images.reshape(len(images), 4, 4, 4, 4, 3).mean((2, 4))
        return (parts.reshape(len(images), -1) - 128).astype(np.float32)
