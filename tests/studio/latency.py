"""Measure the studio with made vectors: ``python tests/studio/latency.py [IMAGES] [CLASSES]``.

Starts ``handful studio`` on a folder of that many small files with vectors from a file, labels as a person would, and
prints the time of each kind of request, and from a label to new predictions.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

DIM, ROUNDS = 256, 12


def make(folder: Path, count: int, classes: int) -> np.ndarray[Any, Any]:
    """Images and vectors of this many classes; the class of each image."""
    rng = np.random.default_rng(0)
    truth = rng.integers(classes, size=count)
    centres = rng.normal(size=(classes, DIM))
    vectors = (centres[truth] + 1.5 * rng.normal(size=(count, DIM))).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(buffer, "JPEG")
    for number in range(count):
        place = folder / "photos" / f"{number // 1000:03}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(buffer.getvalue() + number.to_bytes(4, "big"))
    np.save(folder / "vectors.npy", vectors)
    return truth


class Client:
    """Requests to a studio, with their times."""

    def __init__(self, address: str) -> None:
        self.base, self.token = address.strip().split("/?token=")
        self.times: dict[str, list[float]] = {}
        headers = {"Authorization": f"Bearer {self.token}"}
        self.events = urllib.request.urlopen(urllib.request.Request(f"{self.base}/api/events", headers=headers))
        self.heard, self._kind = 0, ""

    def ask(self, name: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        started = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(self.base + path, content, headers)) as answer:
            found = answer.read()
            kind = answer.headers["content-type"]
        self.times.setdefault(name, []).append(time.perf_counter() - started)
        return json.loads(found) if kind == "application/json" else found

    def hear(self, name: str, revision: int) -> None:
        """Wait for the event that tells of predictions by these labels, as the page does."""
        started = time.perf_counter()
        while self.heard < revision:
            line = self.events.readline().decode()
            if line.startswith("data: ") and self._kind == "model":
                self.heard = max(self.heard, json.loads(line[6:])["revision"])
            elif line.startswith("event: "):
                self._kind = line[7:].strip()
        self.times.setdefault(name, []).append(time.perf_counter() - started)

    def wait(self, name: str, there: Any) -> dict[str, Any]:
        started = time.perf_counter()
        while not there(state := self.ask("GET /api/state", "/api/state")):
            time.sleep(0.1)
        self.times.setdefault(name, []).append(time.perf_counter() - started)
        return dict(state)


def measure(client: Client, truth: np.ndarray[Any, Any]) -> None:
    client.wait("start to embedded", lambda state: state["embedding"]["state"] == "done")
    client.wait("groups", lambda state: state["groups"]["state"] == "ready")
    client.wait("map", lambda state: state["map"]["version"] >= 2)
    for name in sorted(set(truth.tolist())):
        rows = np.flatnonzero(truth == name)[:3].tolist()
        client.ask("POST /api/labels", "/api/labels", {"images": rows, "label": f"class {name}"})
    client.wait("first predictions", lambda state: state["model"]["version"] and not state["model"]["busy"])
    client.wait("first check", lambda state: state["model"]["checked"] and not state["model"]["busy"])
    for number in range(ROUNDS):
        row = 1000 + number
        body = {"images": [row], "label": f"class {truth[row]}"}
        done = client.ask("POST /api/labels", "/api/labels", body)["revision"]
        client.hear("label to new predictions", done)
        time.sleep(1)  # one action a second
        for sort in ("name", "class", "doubt", "group", "none", f"like&like={row}"):
            client.ask(f"GET /api/images, {sort.partition('&')[0]}", f"/api/images?limit=100&offset=500&sort={sort}")
        client.ask("GET /api/marks", "/api/marks")
        client.ask("GET /api/order", "/api/order?sort=doubt")
        client.ask("GET /api/next", "/api/next")
        client.ask("GET /api/thumbnail", f"/api/thumbnail/{row * 7 % len(truth)}")
    client.wait("settled check", lambda state: state["model"]["checked"] and not state["model"]["busy"])
    client.ask("POST /api/undo", "/api/undo", {})
    client.ask("POST /api/accept", "/api/accept", {"where": {"surer": 0.9}})
    client.ask("GET /api/export csv", "/api/export?format=csv")


def main(count: int = 100_000, classes: int = 20) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = make(folder, count, classes)
        command = [sys.executable, "-m", "handful", "studio", str(folder / "photos"), "--no-browser", "--embedder",
                   f"npy:{folder / 'vectors.npy'}", "--out", str(folder / "out")]  # fmt: skip
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                client = Client(server.stdout.readline())
                client.times["command to address"] = [time.perf_counter() - started]
                measure(client, truth)
                status = Path(f"/proc/{server.pid}/status")
                memory = (
                    [line for line in status.read_text().splitlines() if "VmHWM" in line] if status.exists() else []
                )
            finally:
                server.terminate()
        print(f"{count:,} images, {classes} classes; {' '.join(memory)}")
        for what, times in client.times.items():
            middle, most = 1000 * np.median(times), 1000 * max(times)
            print(f"{what:32} median {middle:8.1f} ms, most {most:8.1f} ms, {len(times)} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
