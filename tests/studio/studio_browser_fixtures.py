"""Pages in headless Chromium, of a studio of small pictures of four colours.

To look for races, set HANDFUL_THROTTLE to a number: the browser then works so many times slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import playwright.sync_api as playwright
import pytest
from PIL import Image
from studio_browser import BROWSER, COLOURS, COUNT, GUARD, Studio, colour_of

# Messages go by themselves after some seconds: what was said is kept for those who come late.
SAID = """window.said = [];
new MutationObserver((all) => all.forEach((one) => one.addedNodes.forEach((node) =>
  node.classList?.contains("toast") && window.said.push(node.textContent))))
  .observe(document, { childList: true, subtree: true });"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-dev-shm-usage"] if os.name == "posix" and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=BROWSER, args=options, timeout=1000 * GUARD)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Any]]:
    """Opens pages at an address. An error in a page's code or a breach of its policy fails the test."""
    contexts, wrong = [], []

    def opened(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 720}, **options})
        contexts.append(context)
        context.set_default_timeout(1000 * GUARD)
        context.add_init_script(SAID)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        if rate := os.environ.get("HANDFUL_THROTTLE"):
            context.new_cdp_session(tab).send("Emulation.setCPUThrottlingRate", {"rate": float(rate)})
        tab.goto(address)
        tab.wait_for_selector("body[data-phase=ready]")
        return tab

    yield opened
    assert not wrong
    for context in contexts:
        context.close()


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    """A studio of 40 pictures of four colours in turn, with vectors from a file."""
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    photos, rng = tmp_path / "photos", np.random.default_rng(0)
    photos.mkdir()
    names = [f"{number:02}.png" for number in range(COUNT)]
    for number, name in enumerate(names):
        pixels = np.array(COLOURS[colour_of(number)]) + rng.normal(scale=20, size=(30, 40, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(photos / name)
    values = 3 * np.eye(4, 8)[np.arange(COUNT) % 4] + rng.normal(scale=0.3, size=(COUNT, 8))
    np.savez(tmp_path / "vectors.npz", paths=names, vectors=values.astype(np.float32))
    found = Studio(photos, tmp_path / "out", "--embedder", f"npy:{tmp_path / 'vectors.npz'}", "--no-distractors")
    yield found
    found.kill()


@pytest.fixture
def page(open_page: Callable[[str], Any], studio: Studio) -> Any:
    """The page, at the grid."""
    tab = open_page(studio.address)
    tab.click("#tab-grid")
    tab.wait_for_selector("#image-0.loaded")
    return tab
