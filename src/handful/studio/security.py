"""Who gets in: a guard in front of every request.

A studio serves one user on one machine, but a browser also runs the pages of others, which can send requests to any
address. So a request needs (1) a Host that is the studio's own, which a page cannot have by rebinding its name to this
machine; (2) the token of the run, which only the terminal and the page know: as a cookie that pages of other sites
cannot send, or in a header; and (3), where it changes anything, the studio's own Origin, or the header. Nothing allows
other origins to read an answer.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..terminal import printable

MOST_BODY = 4 << 20  # bytes
MOST_TARGET = 16 << 10  # bytes of a path and its query
READS = ("GET", "HEAD")
METHODS = (*READS, "POST", "PATCH", "DELETE")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DOOR = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>handful studio</title>"
    "<h1>This studio needs its key</h1><p>Open the whole address that the command printed: it ends with ?token=..., "
    "and is another one after each start.</p></html>"
)


class Refused(Exception):  # noqa: N818 - reads better
    """A request that is not answered: status, and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """An ASGI application that lets only its user through to another.

    Args:
        app: the other.
        hosts: names and addresses of this machine that a request may call it by.
        port: that it listens at.
        token: of the run; made if it is not given.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], port: int, token: str | None = None) -> None:
        self.app, self.port = app, port
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.hosts = {f"{host}:{port}".lower() for host in hosts} | ({*hosts} if port == 80 else set())
        self.cookie = f"handful-{port}"  # cookies are of a host, not of a port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *self._headers(scope, message)]
            await send(message)

        try:
            entering = self._check(scope)
            scope.setdefault("state", {})["entering"] = entering
            await self.app(scope, _limited(receive), guarded)
        except Refused as error:
            if not started:
                await _refuse(scope, guarded, error.status, str(error))
        except Exception as error:  # a bug: the page gets a sentence, the terminal a line, nobody a traceback
            line = f"{type(error).__name__}: {error}"[:300]
            print(f"handful: {scope['method']} {printable(scope['path'][:200])}: {printable(line)}", file=sys.stderr)
            if not started:
                await _refuse(scope, guarded, 500, "something went wrong; the labels are safe, try again")

    def _check(self, scope: Scope) -> bool:
        """Raise `Refused`, or say whether the request has just brought the token in its address."""
        headers = {}
        for name, value in scope["headers"]:
            if name in headers and name in (b"host", b"origin", b"authorization", b"cookie", b"content-length"):
                raise Refused(400, f"the header {name.decode('latin-1')} is there twice")
            headers[name] = value.decode("latin-1")
        if headers.get(b"host", "").lower() not in self.hosts:
            raise Refused(403, "this address is not the studio's: open the one that the command printed")
        method, path, query = scope["method"], scope["path"], scope.get("query_string", b"")
        if method not in METHODS:
            raise Refused(405, "this method is not known here")
        if len(query) + len(path) > MOST_TARGET:
            raise Refused(414, "the address is too long")
        bearer = self._bearer(headers.get(b"authorization"))
        entering = path == "/" and method in READS and self._in_address(query)
        if not (bearer or entering or self._in_cookie(headers.get(b"cookie", ""))):
            raise Refused(401, "the token of this run is missing or wrong: open the address that the command printed")
        if not entering and headers.get(b"sec-fetch-site") in ("cross-site", "same-site") and not bearer:
            raise Refused(403, "another page may not ask this")
        origin = headers.get(b"origin")
        if origin is not None and origin != f"http://{headers[b'host']}":
            raise Refused(403, "another page may not ask this")
        if method not in READS and origin is None and not bearer:
            raise Refused(403, "a change needs the header Origin, or the token as 'Authorization: Bearer'")
        return entering

    def _bearer(self, given: str | None) -> bool:
        if given is None:
            return False
        scheme, _, token = given.partition(" ")
        return scheme.lower() == "bearer" and self._is_token(token.strip())

    def _in_address(self, query: bytes) -> bool:
        try:
            found = parse_qs(query.decode("ascii"), max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(found) == 1 and self._is_token(found[0])

    def _in_cookie(self, header: str) -> bool:
        try:
            found = SimpleCookie(header[:4096]).get(self.cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def _headers(self, scope: Scope, message: Message) -> list[tuple[bytes, bytes]]:
        present = {name.lower() for name, _ in message.get("headers", ())}
        found = dict(HEADERS)
        if b"cache-control" not in present:
            found["Cache-Control"] = "no-store"
        if scope.get("state", {}).get("entering"):
            found["Set-Cookie"] = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        return [(name.lower().encode(), value.encode()) for name, value in found.items()]


def _limited(receive: Receive) -> Receive:
    """A body that is not too long."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MOST_BODY:
            raise Refused(413, f"the request is larger than {MOST_BODY >> 20} MB")
        return message

    return limited


async def _refuse(scope: Scope, send: Send, status: int, sentence: str) -> None:
    content: Any = json.dumps({"error": sentence}).encode()
    kind = b"application/json"
    if status == 401 and scope["path"] == "/":
        content, kind = DOOR.encode(), b"text/html; charset=utf-8"
    headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
    if status in (400, 413):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
