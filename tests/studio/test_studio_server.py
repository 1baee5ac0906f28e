"""The command and its server, in a process of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studio_client import COUNT, GUARD

from command import handful
from handful.studio.start import out_folder

pytest_plugins = ["studio_fixtures"]


class Page:
    """Requests to a server, as a program sends them."""

    def __init__(self, address: str) -> None:
        self.base, self.token = address.strip().split("/?token=")
        self.port = int(self.base.rpartition(":")[2])

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.base + path, content, headers)) as answer:
            return json.loads(answer.read())


@contextmanager
def running(album: Path, vectors: str, out: Path) -> Iterator[tuple[Page, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "handful", "studio", str(album), "--no-browser", "--embedder", vectors]
    with subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), server.communicate()
            yield Page(line), server
        finally:
            if server.poll() is None:
                server.kill()


def test_the_command_prints_one_line_and_serves_until_it_is_interrupted(album, vectors, tmp_path) -> None:
    with running(album, vectors, tmp_path / "out") as (page, server):
        assert page.ask("/api/state")["images"] == COUNT
        assert page.ask("/api/labels", {"images": [0, 1], "label": "a"})["count"] == 2
        events = urllib.request.Request(f"{page.base}/api/events", headers={"Authorization": f"Bearer {page.token}"})
        with urllib.request.urlopen(events) as stream:
            assert stream.readline() == b"event: hello\n"
            second = handful("studio", album, "--no-browser", "--embedder", vectors, "--out", tmp_path / "out")
            assert second.returncode == 2 and "another studio is at work" in second.stderr
            assert "Traceback" not in second.stderr
            server.send_signal(signal.SIGINT)
            assert server.wait(GUARD) == 0, "a page that listens does not keep it"
        out, error = server.communicate()
        assert out == "" and "Traceback" not in error


def garbage(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(content)
        answer = b""
        connection.settimeout(0.1)  # the server waits for more, or keeps the line open: then it is ended
        try:
            while part := connection.recv(65536):
                answer += part
        except TimeoutError:
            pass
    return answer


@pytest.mark.slow
def test_a_thousand_hostile_requests_get_nothing_and_leave_it_alive(album, vectors, tmp_path) -> None:
    rng = random.Random(0)
    with running(album, vectors, tmp_path / "out") as (page, server):
        host = f"127.0.0.1:{page.port}"
        lines = [
            "GET /api/state HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer TOKEN\r\n\r\n",
            "GET /api/images HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET /api/state HTTP/1.1\r\nHost: HOST\r\nHost: evil\r\nAuthorization: Bearer TOKEN\r\n\r\n",
            "GET http://evil.example/api/state HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET /api/thumbnail/../../../etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "POST /api/labels HTTP/1.1\r\nHost: HOST\r\nOrigin: null\r\nAuthorization: Bearer TOKEN\r\n"
            "Content-Type: application/json\r\nContent-Length: 29\r\n\r\n{\"images\": [1], \"label\": \"x\"}",
            "POST /api/labels HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999999999\r\n\r\n{",
            "POST /api/labels HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n{",
            "POST /api/labels HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFF\r\n",
            "POST /api/labels HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
            "GET /" + "a" * 70_000 + " HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: HOST\r\n" + "X: y\r\n" * 20_000 + "\r\n",
            "GET / HTTP/9.9\r\n\r\n",
            "GET /api/state HTTP/1.0\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET /api/events HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "\0" * 1000,
            "GET /api/export?format=csv HTTP/1.1\r\nHost: HOST\r\nCookie: handful-PORT=" + "x" * 43 + "\r\n\r\n",
        ]  # fmt: skip
        for number in range(1000):
            text = lines[number % len(lines)].replace("HOST", host).replace("TOKEN", page.token)
            content = bytearray(text.replace("PORT", str(page.port)).encode("latin-1"))
            if number >= len(lines) and page.token not in text:  # without the token, no change makes it right
                for _ in range(rng.randint(0, 3)):
                    content[rng.randrange(min(len(content), 300))] = rng.randrange(256)
            try:
                answer = garbage(page.port, bytes(content))
            except OSError:
                continue
            assert not answer.startswith(b"HTTP/1.1 2"), (content[:200], answer[:200])
            assert b".jpg" not in answer and b"Traceback" not in answer
        assert page.ask("/api/state")["revision"] == 0
        server.send_signal(signal.SIGINT)
        assert server.wait(GUARD) == 0
        assert "Traceback" not in server.communicate()[1]


@pytest.mark.slow
def test_labels_that_were_answered_survive_a_kill_of_the_server(album, vectors, tmp_path) -> None:
    kept: dict[int, int] = {}
    for turn in range(3):
        with running(album, vectors, tmp_path / "out") as (page, server):
            images = page.ask("/api/images?limit=1000")["images"]
            assert {one["number"]: one["label"] for one in images if one["source"] == "given"} == kept
            for number in range(turn, COUNT, 4):
                done = page.ask("/api/labels", {"images": [number], "label": f"class {number % 5}"})
                kept[number] = next(
                    one["id"] for one in done["state"]["classes"] if one["name"] == f"class {number % 5}"
                )
            os.kill(server.pid, signal.SIGKILL)
            server.wait()


def test_bad_input_is_one_sentence(album, vectors, tmp_path, monkeypatch) -> None:
    def said(*arguments: object) -> str:
        done = handful("studio", *arguments, "--no-browser", "--out", tmp_path / "out")
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
        return done.stderr

    (tmp_path / "empty").mkdir()
    (tmp_path / "labels.csv").write_text("path,label\nnowhere.jpg,cat\n")
    assert "holds no images" in said(tmp_path / "empty")
    assert "no such folder" in said(tmp_path / "nowhere")
    assert "nowhere.jpg" in said(album, "--labels", tmp_path / "labels.csv", "--embedder", vectors)
    assert "unknown embedder" in said(album, "--embedder", "nothing")
    inside = handful("studio", album, "--no-browser", "--embedder", vectors, "--out", album / "labels")
    assert inside.returncode == 2 and "among the images" in inside.stderr and not (album / "labels").exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen" in said(album, "--embedder", vectors, "--port", taken.getsockname()[1])
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else found(name, *more)
    )
    assert "the studio needs uvicorn: pip install uvicorn" in said(album)


def test_labels_are_kept_beside_the_images(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.b").mkdir()
    assert out_folder(tmp_path / "a.b") == tmp_path / "a.b-studio"
    monkeypatch.chdir(tmp_path / "a.b")
    assert out_folder(Path()) == tmp_path / "a.b-studio"
