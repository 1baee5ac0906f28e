"""Kill the studio in the middle of labelling, again and again: ``python tests/studio/kills.py [TIMES]``.

Starts ``handful studio`` on a folder of small images, labels as fast as it answers, kills the server with ``SIGKILL``
at a random moment, starts it again with the same command, and compares: every label that was answered must be there,
and of the request that was not answered, all or nothing.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
from studio_client import COLOURS, picture

IMAGES, LONGEST = 60, 0.4  # seconds of labelling


class Server:
    """A studio in a process of its own."""

    def __init__(self, place: Path) -> None:
        words = ["studio", str(place / "photos"), "--out", str(place / "out"), "--no-browser"]
        command = [sys.executable, "-m", "handful", *words, "--embedder", f"npy:{place / 'vectors.npy'}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()
        self.base, self.token = line.split("/?token=")

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.base + path, content, headers)) as answer:
            return json.loads(answer.read())

    def labels(self) -> dict[int, str]:
        names = {one["id"]: one["name"] for one in self.ask("/api/state")["classes"]}
        images = self.ask("/api/images?show=given&limit=1000")["images"]
        return {one["number"]: names[one["label"]] for one in images}


def label_until_killed(server: Server, kept: dict[int, str], rng: random.Random) -> tuple[int, dict[int, str]]:
    """How many requests were answered; ``kept`` grows by their labels. And the labels of the one that was not."""
    answered = 0
    timer = threading.Timer(rng.uniform(0.02, LONGEST), server.process.kill)
    timer.start()
    while True:
        numbers = rng.sample(range(IMAGES), rng.choice([1, 1, 1, 5, 20]))
        name = f"class {rng.randrange(5)}"
        try:
            server.ask("/api/labels", {"images": numbers, "label": name})
        except IncompleteRead:
            pass  # cut off behind its status: it was answered
        except OSError:
            server.process.wait()
            return answered, dict.fromkeys(numbers, name)
        kept.update(dict.fromkeys(numbers, name))
        answered += 1


def main(times: int = 100) -> None:
    rng, kept, waiting = random.Random(0), {}, {}
    answered = lost = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "photos").mkdir()
        for number in range(IMAGES):
            colour = list(COLOURS.values())[number % 4]
            (place / "photos" / f"{number:02}.jpg").write_bytes(picture(colour, number))
        np.save(place / "vectors.npy", np.random.default_rng(0).normal(size=(IMAGES, 8)).astype(np.float32))
        started = time.monotonic()
        for turn in range(times + 1):
            server = Server(place)
            found = server.labels()
            if found not in (kept, kept | waiting):
                lost += 1
                print(f"turn {turn}: {found} instead of {kept} or {kept | waiting}")
            kept = dict(found)
            if turn == times:
                server.process.kill()
                server.process.wait()
                break
            count, waiting = label_until_killed(server, kept, rng)
            answered += count
        seconds = time.monotonic() - started
    print(f"{times} kills, {answered} answered requests, {lost} times something was lost; {seconds:.0f} seconds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
