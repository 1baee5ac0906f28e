"""Measure the page of the studio in a browser: ``python tests/studio/page_latency.py [IMAGES] [CLASSES]``.

Made images and vectors as in latency.py. Prints the time from a key to the frame that shows the label, from the key to
the frame that shows the new labels of all other images, frames a second while scrolling, and memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from latency import make
from playwright.sync_api import sync_playwright

KEYS = 12
WATCH = """() => {
  window.shown = [];
  addEventListener("keydown", () => {
    const start = performance.now(), cell = document.querySelector(".cell.chosen");
    performance.clearMarks();
    const done = () => window.shown.push(performance.now() - start);
    const look = () => (cell.matches(".given") ? setTimeout(done) : requestAnimationFrame(look));
    requestAnimationFrame(look);
    window.start = start;
  }, true);
}"""
SCROLL = """(step) => new Promise((done) => {
  const grid = document.getElementById("grid"), gaps = [], end = performance.now() + 5000;
  let last = performance.now();
  grid.scrollTop = 0;
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    grid.scrollTop += step;
    if (now < end) return requestAnimationFrame(frame);
    gaps.sort((a, b) => a - b);
    done([1000 * gaps.length / gaps.reduce((a, b) => a + b), gaps[Math.floor(0.95 * gaps.length)]]);
  };
  requestAnimationFrame(frame);
})"""


def watch(page: Any, truth: np.ndarray[Any, Any], classes: int) -> None:
    page.click("#tab-grid")
    page.wait_for_selector("#image-0.loaded")
    for step in (60, 2500):
        frames, slow = page.evaluate(SCROLL, step)
        print(f"scrolling {step} pixels a frame: {frames:.0f} frames a second, 95 % within {slow:.0f} ms", flush=True)
    page.evaluate("document.getElementById('grid').scrollTop = 0")
    for kind in range(classes):
        number = int(np.flatnonzero(truth[:20] == kind)[0]) if kind in truth[:20] else None
        if number is None:
            continue
        page.click(f"#image-{number}")
        page.keyboard.press("/")
        page.keyboard.type(f"kind {kind}")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#image-{number}.given:not(.sending)")
    page.wait_for_function("() => performance.getEntriesByName('relabelled').length > 1", timeout=600_000)
    page.evaluate(WATCH)
    rest = []
    for at in range(20, 20 + KEYS):
        page.evaluate("performance.clearMarks()")
        page.click(f"#image-{at}")
        page.keyboard.press(str(1 + at % 2))
        page.wait_for_function("() => performance.getEntriesByName('relabelled').length", timeout=600_000)
        rest.append(page.evaluate("performance.getEntriesByName('relabelled')[0].startTime - window.start"))
    shown = page.evaluate("window.shown")
    print(f"key to screen: median {np.median(shown):.0f} ms, slowest {max(shown):.0f} ms")
    print(f"key to the relabelled rest on screen: median {np.median(rest):.0f} ms, slowest {max(rest):.0f} ms")
    print(f"page: {page.evaluate('performance.memory.usedJSHeapSize') / 2**20:.0f} MB of JavaScript, "
          f"{page.locator('.cell').count()} cells")  # fmt: skip


def main() -> None:
    count, classes = (int(word) for word in (*sys.argv[1:], *("10000", "10")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        truth = make(Path(place), count, classes)
        words = [sys.executable, "-m", "handful", "studio", f"{place}/photos", "--out", f"{place}/out", "--no-browser",
                 "--embedder", f"npy:{place}/vectors.npy"]  # fmt: skip
        studio = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            assert studio.stdout is not None
            address = studio.stdout.readline().strip()
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(address)
            page.wait_for_selector("body[data-phase=ready]")
            page.wait_for_function("() => document.getElementById('progress').hidden", timeout=3_600_000)
            print(f"{count} images, {classes} classes", flush=True)
            watch(page, truth, classes)
            status = Path(f"/proc/{studio.pid}/status").read_text()
            used = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
            print(f"server: {int(used) // 1024} MB")
        finally:
            browser.close()
            studio.terminate()
            studio.wait()


if __name__ == "__main__":
    main()
