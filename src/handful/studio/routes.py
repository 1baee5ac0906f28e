"""The routes of the API, as docs/studio-api.json describes them, and the files of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..datasets.images import BrokenImage
from ..errors import HandfulError
from ..labelling.book import Conflict, NotThere
from .answers import described, groups
from .desk import Desk
from .exports import DOWNLOADS, WRITTEN, download, write
from .look import Look
from .requests import (
    WrongKind,
    numbers,
    one_of,
    read_body,
    read_query,
    read_where,
    text,
    truth,
    whole,
)
from .security import Refused
from .thumbnails import LARGE, SMALL

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png", ".webp": "image/webp",
    ".woff2": "font/woff2", ".json": "application/json",
}  # fmt: skip
PICTURES_AT_ONCE = 4  # threads for pictures: others stay free for labels
HEARTBEAT = 15.0  # seconds
FOR_EVER = "private, max-age=31536000, immutable"


def application(desk: Desk) -> Starlette:
    """The studio as an ASGI application, without the guard in front of it."""
    api = _Api(desk)
    routes = [
        Route("/", _page_file("index.html")),
        Route("/page/{path:path}", _page_files()),
        Route("/api/state", api.state),
        Route("/api/images", api.images),
        Route("/api/images/{number}", api.image),
        Route("/api/order", api.order),
        Route("/api/marks", api.marks),
        Route("/api/thumbnail/{number}", api.thumbnail),
        Route("/api/preview/{number}", api.preview),
        Route("/api/labels", api.label, methods=["POST"]),
        Route("/api/labels/matching", api.label_matching, methods=["POST"]),
        Route("/api/accept", api.accept, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
        Route("/api/redo", api.redo, methods=["POST"]),
        Route("/api/classes", api.add_class, methods=["POST"]),
        Route("/api/classes/{id}", api.change_class, methods=["PATCH"]),
        Route("/api/classes/{id}", api.delete_class, methods=["DELETE"]),
        Route("/api/classes/{id}/merge", api.merge_class, methods=["POST"]),
        Route("/api/next", api.next),
        Route("/api/groups", api.groups),
        Route("/api/map", api.map),
        Route("/api/duplicates", api.duplicates),
        Route("/api/broken", api.broken),
        Route("/api/export", api.export),
        Route("/api/export", api.write_export, methods=["POST"]),
        Route("/api/events", api.events),
    ]
    handlers: dict[Any, Any] = {
        Refused: lambda request, error: _error(error.status, str(error)),
        WrongKind: lambda request, error: _error(415, str(error)),
        NotThere: lambda request, error: _error(404, str(error)),
        Conflict: lambda request, error: _error(409, str(error)),
        HandfulError: lambda request, error: _error(400, str(error)),
        BrokenImage: lambda request, error: _error(404, f"this image cannot be read: {error}"),
        HTTPException: lambda request, error: _error(error.status_code, _SENTENCES.get(error.status_code, "not here")),
        Exception: lambda request, error: _error(500, "something went wrong; the labels are safe, try again"),
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.desk = desk
    return app


_SENTENCES = {404: "there is nothing at this address", 405: "this address does not know this method"}


class _Api:
    """One method for each operation."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._pictures: anyio.CapacityLimiter | None = None

    def state(self, request: Request) -> Response:
        return _json(self.desk.state())

    def images(self, request: Request) -> Response:
        query = read_query(request, "offset", "limit")
        offset = whole(request.query_params, "offset", 0)
        limit = whole(request.query_params, "limit", 100, 1, 1000)
        revision, version, look = self._seen()
        found = look.select(query)
        return _json({
            "total": len(found), "offset": offset, "revision": revision, "version": version,
            "images": described(self.desk, look, found[offset : offset + limit], query.like),
        })  # fmt: skip

    def image(self, request: Request) -> Response:
        number = self._number(request)
        return _json(described(self.desk, self.desk.look(), [number])[0])

    def order(self, request: Request) -> Response:
        query = read_query(request)
        return self._binary(lambda look: look.select(query).astype("<u4").tobytes())

    def marks(self, request: Request) -> Response:
        return self._binary(Look.marks)

    def map(self, request: Request) -> Response:
        places, version = self.desk.around.map, self.desk.around.map_version
        content = b"" if places is None else places.astype("<f4").tobytes()
        return Response(content, media_type="application/octet-stream", headers={"X-Version": str(version)})

    async def thumbnail(self, request: Request) -> Response:
        return await self._picture(request, SMALL, 192)

    async def preview(self, request: Request) -> Response:
        return await self._picture(request, LARGE, 1280)

    async def _picture(self, request: Request, sizes: tuple[int, ...], usual: int) -> Response:
        number, size = self._number(request), whole(request.query_params, "size", usual)
        if size not in sizes:
            raise HandfulError(f"'size' should be one of {', '.join(map(str, sizes))}")
        if self._pictures is None:
            self._pictures = anyio.CapacityLimiter(PICTURES_AT_ONCE)
        content = await anyio.to_thread.run_sync(self.desk.thumbnails.picture, number, size, limiter=self._pictures)
        same = request.query_params.get("tag") == self.desk.images.tag(number)
        caching = FOR_EVER if same else "private, max-age=60"
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": caching})

    async def label(self, request: Request) -> Response:
        content = await read_body(request, {"images", "label"}, {"images", "label"})
        name = _name(content)
        return await _run(lambda: self.desk.label(numbers(content), name))

    async def label_matching(self, request: Request) -> Response:
        content = await read_body(request, {"where", "label", "version"}, {"where", "label"})
        query, version, name = read_where(content["where"]), whole(content, "version"), _name(content)
        return await _run(lambda: self.desk.label(self.desk.matching(query, version), name))

    async def accept(self, request: Request) -> Response:
        content = await read_body(request, {"images", "labels", "where", "version"})
        if ("images" in content) == ("where" in content):
            raise HandfulError("give either 'images' or 'where'")
        version = whole(content, "version")
        if "images" in content:
            images = np.array(numbers(content), dtype=np.int64)
            shown = numbers(content, "labels") if "labels" in content else None
            if shown is not None and len(shown) != len(images):
                raise HandfulError("'labels' should be as many as 'images'")
            return await _run(lambda: self.desk.accept(images, shown, seen=True))
        query = read_where(content["where"])
        return await _run(lambda: self.desk.accept(self.desk.matching(query, version), seen=False))

    def undo(self, request: Request) -> Response:
        return _json(self.desk.do(lambda book: book.undo()))

    def redo(self, request: Request) -> Response:
        return _json(self.desk.do(lambda book: book.redo()))

    async def add_class(self, request: Request) -> Response:
        content = await read_body(request, {"name", "key"}, {"name"})
        name, key = text(content, "name"), _key(content)
        return await _run(lambda: self.desk.do(lambda book: book.add(name, key)), 201)

    async def change_class(self, request: Request) -> Response:
        content = await read_body(request, {"name", "key", "colour"})
        values: dict[str, Any] = {}
        if "name" in content:
            values["name"] = text(content, "name")
        if "key" in content:
            values["key"] = _key(content)
        if "colour" in content:
            values["colour"] = whole(content, "colour", most=10_000) or 0
        number = _id(request)
        return await _run(lambda: self.desk.do(lambda book: book.change(number, **values)))

    def delete_class(self, request: Request) -> Response:
        number = _id(request)
        return _json(self.desk.do(lambda book: book.delete(number)))

    async def merge_class(self, request: Request) -> Response:
        content = await read_body(request, {"into"}, {"into"})
        number, into = _id(request), whole(content, "into") or 0
        return await _run(lambda: self.desk.do(lambda book: book.merge(number, into)))

    def next(self, request: Request) -> Response:
        count = whole(request.query_params, "count", 12, 1, 100)
        words = [word for word in request.query_params.get("skip", "").split(",") if word]
        skip = {whole({"skip": word}, "skip") for word in words[:2000]}
        found = self.desk.next_images(count, skip)
        return _json({
            "version": self.desk.learner.opinion.version, "images": described(self.desk, self.desk.look(), found)
        })  # fmt: skip

    def groups(self, request: Request) -> Response:
        return _json(groups(self.desk, self.desk.look()))

    def duplicates(self, request: Request) -> Response:
        return _json({"sets": self.desk.around.sets})

    def broken(self, request: Request) -> Response:
        images = self.desk.images
        return _json({"images": [
            {"number": number, "name": images.shown[number], "reason": reason}
            for number, reason in sorted(images.broken.items())
        ]})  # fmt: skip

    def export(self, request: Request) -> Response:
        wanted = one_of(request.query_params, "format", DOWNLOADS, None)
        return download(self.desk, wanted, truth(request.query_params, "given"))

    async def write_export(self, request: Request) -> Response:
        content = await read_body(request, {"format", "given"}, {"format"})
        wanted, given = one_of(content, "format", WRITTEN, None), truth(content, "given")
        return await _run(lambda: write(self.desk, wanted, given))

    async def events(self, request: Request) -> Response:
        queue = self.desk.events.listen()
        if queue is None:
            raise Refused(503, "too many pages listen already: close some")
        first = await run_in_threadpool(self.desk.state)

        async def lines() -> AsyncIterator[str]:
            try:
                yield _event("hello", first)
                while True:
                    try:
                        entry = await asyncio.wait_for(queue.get(), HEARTBEAT)
                    except TimeoutError:
                        yield ": still here\n\n"
                        continue
                    if entry is None:
                        return
                    yield _event(*entry)
            finally:
                self.desk.events.leave(queue)

        return StreamingResponse(lines(), media_type="text/event-stream")

    def _number(self, request: Request) -> int:
        found = request.path_params["number"]
        if not (found.isascii() and found.isdigit() and len(found) < 10 and int(found) < len(self.desk.images)):
            raise NotThere("there is no image of this number")
        return int(found)

    def _seen(self) -> tuple[int, int, Look]:
        """Revision and version of what is shown, and the look: at least as new, since labels go on meanwhile."""
        revision, version = self.desk.book.revision, self.desk.learner.opinion.version
        return revision, version, self.desk.look()

    def _binary(self, content: Callable[[Look], bytes]) -> Response:
        revision, version, look = self._seen()
        headers = {"X-Revision": str(revision), "X-Version": str(version)}
        return Response(content(look), media_type="application/octet-stream", headers=headers)


def _page_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def found(request: Request) -> Response:
        return _file(PAGE / name) if (PAGE / name).is_file() else _error(404, "the page is not installed")

    return found


def _page_files() -> Callable[[Request], Awaitable[Response]]:
    """A file of the page by its name; only those that are there when the studio starts have one."""
    files = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.suffix in KINDS}

    async def found(request: Request) -> Response:
        path = files.get(request.path_params["path"])
        return _error(404, _SENTENCES[404]) if path is None else _file(path)

    return found


def _file(path: Path) -> Response:
    return Response(path.read_bytes(), headers={"Content-Type": KINDS[path.suffix], "Cache-Control": "no-cache"})


def _id(request: Request) -> int:
    found = request.path_params["id"]
    return int(found) if found.isascii() and found.isdigit() and len(found) < 10 else -1


def _name(content: dict[str, Any]) -> str | None:
    return None if content["label"] is None else text(content, "label")


def _key(content: dict[str, Any]) -> str | None:
    return None if content.get("key") is None else text(content, "key")


async def _run(act: Callable[[], dict[str, Any]], status: int = 200) -> Response:
    return _json(await run_in_threadpool(act), status)


def _json(content: Any, status: int = 200) -> JSONResponse:
    return JSONResponse(content, status)


def _error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


def _event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"
