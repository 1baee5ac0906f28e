"""A studio in a process of its own, and what can be waited for in its page.

Every wait ends when what it waits for is there, however slow the machine is: `GUARD` only ends tests that hang.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if not os.environ.get("HANDFUL_NEED_BROWSER"):  # where these tests must not be left out
    pytest.importorskip("playwright.sync_api", reason="the tests of the page need playwright")

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
GUARD = 900.0  # seconds after which a test that waits is given up
COUNT = 40
COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (20, 60, 190), "grey": (120, 120, 120)}
in_browser = pytest.mark.skipif(
    BROWSER is None and not os.environ.get("HANDFUL_NEED_BROWSER"),
    reason="there is no Chromium: apt-get install chromium",
)


class Studio:
    """A studio in a process of its own, and what its API says."""

    def __init__(self, photos: Path, out: Path, *arguments: str) -> None:
        self.command = [sys.executable, "-m", "handful", "studio", photos, "--out", out, "--no-browser", *arguments]
        self.port = 0
        self.start()

    def start(self) -> None:
        words = [*map(str, self.command), "--port", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "the studio did not start"
        self.base, self.token = self.address.split("/?token=")
        self.port = int(self.base.rpartition(":")[2])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def read(self, path: str) -> bytes:
        request = urllib.request.Request(self.base + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def post(self, path: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return json.loads(answer.read())

    def given(self) -> dict[int, str]:
        """The labels that are on disk, by number."""
        images = self.get("/api/images?show=given&limit=1000")["images"]  # before the classes: none is missing then
        names = {one["id"]: one["name"] for one in self.get("/api/state")["classes"]} | {0: "none-of-these"}
        return {one["number"]: names.get(one["label"], "") for one in images}

    def wait(self, there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + GUARD
        while not there():
            assert time.monotonic() < deadline, f"{what}: {self.given()}"
            time.sleep(0.05)

    def wait_for(self, labels: dict[int, str]) -> None:
        self.wait(lambda: self.given() == labels, f"expected {labels}")

    def wait_for_model(self) -> None:
        """Wait for predictions from all labels, after the check: from then on they stay as they are."""

        def there() -> bool:
            state = self.get("/api/state")
            model = state["model"]
            settled = model["checked"] and not model["busy"] and model["revision"] == state["revision"]
            return model["state"] == "ready" and settled

        self.wait(there, "a model")

    def wait_for_surroundings(self) -> None:
        """Wait for the groups, the near-duplicates and the map: from then on they stay as they are."""
        self.wait(lambda: self.get("/api/state")["map"]["version"] >= 2, "a map")


def colour_of(number: int) -> str:
    return list(COLOURS)[number % 4]


def name_first(page: Any, number: int, name: str) -> None:
    """Select an image and type the name of a class that is new; wait until the page says that it is on disk."""
    page.click(f"#image-{number}")
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    ticked(page, number, name)


def two_classes(page: Any, studio: Studio) -> None:
    name_first(page, 0, "red")
    name_first(page, 1, "green")
    studio.wait_for({0: "red", 1: "green"})


def ticked(page: Any, number: int, name: str) -> None:
    """Wait until the page says that the label is on disk."""
    page.wait_for_function(
        "([number, name]) => { const cell = document.getElementById(`image-${number}`);"
        " return cell?.querySelector('.name').textContent === name && cell.matches('.given:not(.sending)'); }",
        arg=[number, name],
    )


def unticked(page: Any, number: int) -> None:
    """Wait until the page shows an image without a label of the user's."""
    page.wait_for_selector(f"#image-{number}:not(.given)")


def in_a_row(page: Any) -> int:
    """How many images of the grid stand side by side, when they have come to rest."""
    return int(
        page.evaluate(
            "() => { const all = [...document.querySelectorAll('.cell:not([hidden])')]"
            ".map(one => one.style.transform.split(',')[1]); return all.filter(one => one === all[0]).length; }"
        )
    )


def at_rest(page: Any, number: int) -> dict[str, float]:
    """Where an image is, when it has come to rest."""
    page.wait_for_function("() => !document.querySelector('.content.gliding')")
    return dict(page.locator(f"#image-{number}").bounding_box())


def chosen(page: Any, numbers: list[int]) -> None:
    """Wait until these images are selected, and no others."""
    page.wait_for_function(
        "(numbers) => JSON.stringify([...document.querySelectorAll('.cell.chosen')].map(one => one.number)"
        ".sort((a, b) => a - b)) === JSON.stringify(numbers)",
        arg=numbers,
    )


def said(page: Any, text: str) -> None:
    """Wait until the page has said something."""
    page.wait_for_function("(text) => window.said.some(one => one.includes(text))", arg=text)


def classes_shown(page: Any, names: list[str]) -> None:
    """Wait until these classes are in the list, in this order."""
    page.wait_for_function(
        "(names) => JSON.stringify([...document.querySelectorAll('#classes .name')].map(one => one.textContent))"
        " === JSON.stringify(names)",
        arg=names,
    )
