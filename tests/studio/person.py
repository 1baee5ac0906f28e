"""Play a person who labels with the page of the studio, and count what it takes.

    python tests/studio/person.py PHOTOS.zip --reach 0.9 0.95

The archive has one folder per class; the images are copied without their folders. The person sees what the page shows
and knows the right class of what is seen. A key or a click is one action, and every letter of a new name; one action
takes a second. Further options go to ``handful studio``.

1. Groups: look at twelve images of each, leave out those that do not belong (a click each) and name the class; groups
   of a class that has a name already, or without a majority, are passed over.
2. Screens: the grid shows what is not labelled by hand, the most doubtful first, 24 images a screen. Wrong labels are
   corrected by class (a click each, one key), then the screen is accepted as a whole (a box and Shift A: two actions).
   With ``--way queue``: "Label next" instead, a key for each image.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

SCREEN, EXAMPLES = 24, 12


class Person:
    """Sees the page through its API, and acts."""

    def __init__(self, address: str, truth: dict[str, str]) -> None:
        self.base, self.token = address.split("/?token=")
        self.actions, self.letters, self.labels = 0, 0, 0
        self.names: set[str] = set()
        self.wait(lambda state: state["embedding"]["state"] == "done" and state["groups"]["version"] >= 2)
        self.total = self.get("/api/state")["images"]
        windows = [self.get(f"/api/images?limit=1000&offset={at}") for at in range(0, self.total, 1000)]
        self.truth = {one["number"]: truth[one["name"]] for window in windows for one in window["images"]}

    def read(self, path: str, body: Any = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.base + path, content, headers)) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def wait(self, there: Any) -> Any:
        while not there(state := self.get("/api/state")):
            time.sleep(0.02)
        return state

    def order(self, query: str) -> list[int]:
        content = self.read(f"/api/order?{query}")
        return list(struct.unpack(f"<{len(content) // 4}I", content))

    def label(self, numbers: list[int], name: str) -> None:
        """Press the key of the class, or type its name if it is new."""
        if name not in self.names:
            self.letters += len(name)
            self.actions += len(name)
        self.actions += 1
        self.names.add(name)
        self.labels += len(numbers)
        self.read("/api/labels", {"images": numbers, "label": name})

    def found(self) -> dict[int, str | None]:
        """The label of every image as the page shows it, when the model has learned from all labels."""
        state = self.wait(
            lambda state: (
                state["model"]["state"] in ("no-labels", "one-class")
                or (not state["model"]["busy"] and state["model"]["revision"] == state["revision"])
            )
        )
        names = {one["id"]: one["name"] for one in state["classes"]}
        marks = struct.unpack("<" + "HBB" * self.total, self.read("/api/marks"))
        return {number: names.get(marks[3 * number]) for number in range(self.total)}

    def right(self) -> float:
        found = self.found()
        return sum(found[number] == name for number, name in self.truth.items()) / self.total

    def name_groups(self) -> None:
        for group in self.get("/api/groups")["groups"]:
            all_examples = group["examples"]
            shown = min(EXAMPLES, len(all_examples))
            examples = [all_examples[int((at + 0.5) * len(all_examples) / shown)] for at in range(shown)]
            name, many = Counter(self.truth[number] for number in examples).most_common(1)[0]
            if many * 2 < shown or name in self.names:
                continue
            self.actions += shown - many
            self.label([number for number in examples if self.truth[number] == name], name)

    def screen(self) -> None:
        """Correct a screen of the most doubtful images and accept it."""
        found = self.found()
        shown = self.order("show=unlabelled&sort=doubt")[:SCREEN]
        wrong = [number for number in shown if found[number] != self.truth[number]]
        for name in dict.fromkeys(self.truth[number] for number in wrong):
            these = [number for number in wrong if self.truth[number] == name]
            self.actions += len(these)
            self.label(these, name)
        self.actions += 2
        for name in {self.truth[number] for number in shown if number not in wrong}:
            these = [number for number in shown if number not in wrong and self.truth[number] == name]
            self.labels += len(these)
            self.read("/api/labels", {"images": these, "label": name})

    def queue(self) -> None:
        for _ in range(SCREEN):
            number = self.get("/api/next?count=1")["images"][0]["number"]
            self.label([number], self.truth[number])
            self.found()


def unpack(archive: Path, photos: Path) -> dict[str, str]:
    """Copy the images without their folders, in random order: the class of each by its new name."""
    truth = {}
    with zipfile.ZipFile(archive) as file:
        names = sorted(name for name in file.namelist() if not name.endswith("/") and "/" in name)
        random.Random(0).shuffle(names)
        for number, name in enumerate(names):
            new = f"IMG_{number:05}{Path(name).suffix}"
            (photos / new).write_bytes(file.read(name))
            truth[new] = Path(name).parent.name
    return truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--reach", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--way", choices=["screens", "queue"], default="screens")
    given, options = parser.parse_known_args()  # all others are options of 'handful studio'
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place, "photos")
        photos.mkdir()
        truth = unpack(given.archive, photos)
        words = [sys.executable, "-m", "handful", "studio", photos, "--out", Path(place, "out"), "--no-browser"]
        studio = subprocess.Popen([*map(str, words), *options], stdout=subprocess.PIPE, text=True)
        try:
            assert studio.stdout is not None
            person = Person(studio.stdout.readline().strip(), truth)
            person.name_groups()
            step, reach = (
                {"screens": person.screen, "queue": person.queue}[given.way],
                sorted(given.reach),
            )
            while reach and person.labels < person.total:
                right = person.right()
                reached = [one for one in reach if right >= one]
                reach = reach[len(reached) :]
                share = person.actions / person.total
                print(
                    f"{'REACHED' if reached else '       '} {right:.1%} right after {person.actions} actions "
                    f"({share:.1%} of one at a time; {person.letters} are letters of names), {person.labels} labels",
                    flush=True,
                )
                step()
        finally:
            studio.terminate()
            studio.wait()


if __name__ == "__main__":
    main()
