"""The page of the studio in a real browser: what a person does with keys and mouse is what the API then says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

if os.environ.get("HANDFUL_NEED_BROWSER"):  # where these tests must not be left out
    import playwright.sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api", reason="the tests of the page need playwright")

PAGE = Path(__file__).parents[2] / "src" / "handful" / "studio" / "page"
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
GUARD = 120.0  # seconds after which a test that waits is given up
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
        self.wait(
            lambda: (model := self.get("/api/state")["model"])["state"] == "ready" and not model["busy"], "a model"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-dev-shm-usage"] if os.name == "posix" and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield opened
        opened.close()


def colour_of(number: int) -> str:
    return list(COLOURS)[number % 4]


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
def page(browser: Any, studio: Studio) -> Iterator[Any]:
    """The page, at the grid. An error in its code or a breach of its policy fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    context.set_default_timeout(1000 * GUARD)
    tab, wrong = context.new_page(), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    tab.on("dialog", lambda dialog: wrong.append(dialog.message))
    tab.goto(studio.address)
    tab.wait_for_selector("body[data-phase=ready]")
    tab.click("#tab-grid")
    tab.wait_for_selector("#image-0.loaded")
    yield tab
    assert not wrong
    context.close()


def name_first(page: Any, number: int, name: str) -> None:
    """Select an image and type the name of a class that is new."""
    page.click(f"#image-{number}")
    page.keyboard.type(name)
    page.keyboard.press("Enter")


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


# -- in the browser ---------------------------------------------------------------------------------------------------


@in_browser
@pytest.mark.slow
def test_groups_are_named_and_the_rest_follows(page: Any, studio: Studio) -> None:
    page.click("#tab-groups")
    page.wait_for_selector(".group")
    expected = {}
    for _ in range(2):
        group = page.locator(".group:not(.done)").first
        examples = group.locator(".example").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        numbers = [int(re.search(r"\d+", text).group()) for text in examples]
        name = colour_of(numbers[0])
        for at, number in enumerate(numbers):
            if colour_of(number) == name:
                expected[number] = name
            else:  # does not belong: a click leaves it out
                group.locator(".example").nth(at).click()
        group.locator("input").fill(name)
        group.locator("input").press("Enter")
        studio.wait_for(expected)
    studio.wait_for_model()
    page.click(".onward button")
    page.wait_for_selector(".run")
    counts = {one["name"]: one["given"] + one["found"] for one in studio.get("/api/state")["classes"]}
    page.wait_for_function(
        "(counts) => [...document.querySelectorAll('#classes li')].every("
        "  row => row.querySelector('.total').textContent === `${counts[row.querySelector('.name').textContent]}`)",
        arg=counts,
    )


@in_browser
@pytest.mark.slow
def test_labels_by_keys_with_undo_and_redo(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.click("#image-4")
    page.keyboard.press("1")  # and on to the next image
    page.keyboard.press("2")
    page.keyboard.press("0")
    all_five = {0: "red", 1: "green", 4: "red", 5: "green", 6: "none-of-these"}
    studio.wait_for(all_five)
    for number, name in ((4, "red"), (5, "green"), (6, "none of these")):
        ticked(page, number, name)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Backspace")
    studio.wait_for({0: "red", 1: "green", 4: "red", 5: "green"})
    page.keyboard.press("Control+z")
    studio.wait_for(all_five)
    ticked(page, 6, "none of these")
    for _ in range(3):
        page.keyboard.press("Control+z")
    studio.wait_for({0: "red", 1: "green"})
    page.keyboard.press("Control+Shift+z")
    studio.wait_for({0: "red", 1: "green", 4: "red"})
    ticked(page, 4, "red")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowDown")  # a row and one
    page.wait_for_function("() => document.querySelectorAll('.cell.chosen').length > 1")
    row = page.locator(".cell.chosen").count()
    page.keyboard.press("2")
    studio.wait_for(dict.fromkeys(range(row), "green"))


@in_browser
@pytest.mark.slow
def test_labels_by_mouse(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.click("#image-2")
    page.click("#image-4", modifiers=["Shift"])
    page.click("#image-8", modifiers=["Control"])
    page.click(".chip-button:has-text('red')")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red"})
    first, last = page.locator("#image-6").bounding_box(), page.locator("#image-7").bounding_box()
    page.mouse.move(first["x"] + 30, first["y"] + 30)
    page.mouse.down()
    page.mouse.move(last["x"] + 40, last["y"] + 50, steps=8)
    page.mouse.up()
    page.wait_for_function("() => document.querySelectorAll('.cell.chosen').length === 2")
    page.click("#classes li:has-text('green') .key")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red", 6: "green", 7: "green"})
    page.click("[aria-label=Undo]")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red"})
    page.keyboard.press("Control+a")
    page.click("text=Take back")
    studio.wait_for({})


@in_browser
@pytest.mark.slow
def test_a_key_labels_the_image_under_the_pointer(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.keyboard.press("Escape")
    page.hover("#image-5")
    page.keyboard.press("2")
    studio.wait_for({0: "red", 1: "green", 5: "green"})
    page.keyboard.press("1")  # the pointer has not moved: what is under it by now was not chosen
    page.wait_for_selector("text=Select an image first")
    page.hover("#image-8")
    page.keyboard.press("1")
    studio.wait_for({0: "red", 1: "green", 5: "green", 8: "red"})
    page.click("#image-2")
    page.hover("#image-9")
    page.keyboard.press("1")  # what is selected comes first
    studio.wait_for({0: "red", 1: "green", 5: "green", 8: "red", 2: "red"})


@in_browser
@pytest.mark.slow
def test_a_list_of_names_adds_a_class_each(page: Any, studio: Studio) -> None:
    page.fill("#add input", "red, green,, red")
    page.press("#add input", "Enter")
    page.evaluate(
        """() => { const data = new DataTransfer(); data.setData("text", "blue\\ngrey\\n");
        document.querySelector("#add input").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data })); }"""
    )
    page.press("#add input", "Enter")
    studio.wait(lambda: len(studio.get("/api/state")["classes"]) == 4, "four classes")
    assert [one["name"] for one in studio.get("/api/state")["classes"]] == ["red", "green", "blue", "grey"]


@in_browser
@pytest.mark.slow
def test_a_reload_shows_what_is_on_disk(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    ticked(page, 1, "green")  # until then the browser would ask whether to leave
    assert page.url == f"{studio.base}/"  # the token is not left in the address
    page.reload()
    page.click("#tab-grid")
    ticked(page, 0, "red")
    ticked(page, 1, "green")
    assert page.locator("#classes li").count() == 2


@in_browser
@pytest.mark.slow
def test_labels_survive_a_killed_studio_and_the_page_goes_on(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    ticked(page, 1, "green")
    studio.kill()
    page.click("#image-4")
    page.keyboard.press("1")
    page.wait_for_selector("#banner:visible")  # may come from the page's own asking, before the key is seen
    page.wait_for_selector("#image-4.sending")  # shown, but not ticked
    studio.start()
    assert studio.given() == {0: "red", 1: "green"}
    other = page.context.new_page()
    other.goto(studio.address)  # brings the new token
    other.wait_for_selector("body[data-phase=ready]")
    page.wait_for_selector("#banner", state="hidden")
    studio.wait_for({0: "red", 1: "green", 4: "red"})
    ticked(page, 4, "red")
    other.click("#tab-grid")
    ticked(other, 4, "red")  # two tabs see the same
    name_first(other, 2, "blue")
    ticked(page, 2, "blue")


@in_browser
@pytest.mark.slow
def test_export_downloads_what_the_api_gives(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait_for_model()
    page.keyboard.press("Shift+E")
    for form in ("csv", "labels"):
        page.check(f"input[value={form}]")
        with page.expect_download() as download:
            page.click("dialog button.main")
        assert Path(download.value.path()).read_bytes() == studio.read(f"/api/export?format={form}")


@in_browser
@pytest.mark.slow
def test_the_queue_goes_on_by_itself(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait_for_model()
    page.keyboard.press("Shift+Q")
    expected = {0: "red", 1: "green"}
    for turn in range(4):
        page.wait_for_selector(".big-key")
        number = int(re.search(r"\d+", page.get_attribute(".easel .large", "src")).group())
        assert number not in expected
        if turn == 0:  # a class that is new; the keys are free again after it
            expected[number] = "violet"
            page.keyboard.type("violet")
            page.keyboard.press("Enter")
        else:
            expected[number] = page.locator(".big-name").nth(1).inner_text()
            page.keyboard.press("ArrowRight")
        studio.wait_for(expected)
        page.wait_for_function(f"() => !document.querySelector('.easel .large').src.includes('/{number}?')")
    page.keyboard.press("Backspace")
    del expected[number]
    studio.wait_for(expected)


@in_browser
@pytest.mark.slow
def test_a_lasso_on_the_map_selects(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait(lambda: studio.get("/api/state")["map"]["state"] == "ready", "a map")
    page.keyboard.press("Shift+M")
    page.wait_for_function("() => document.querySelector('.points').width > 300")
    box = page.locator("#map").bounding_box()
    left, top, right, bottom = box["x"] + 4, box["y"] + 4, box["x"] + box["width"] - 4, box["y"] + box["height"] - 4
    page.wait_for_selector("#map > .hello", state="hidden")
    page.mouse.move(left + 60, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left + 60, bottom)):
        page.mouse.move(x, y, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#hand .said').textContent === '40 selected'")
    page.keyboard.press("1")
    studio.wait_for(dict.fromkeys(range(COUNT), "red"))


@in_browser
@pytest.mark.slow
def test_classes_are_added_renamed_merged_and_deleted(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.fill("#add input", "blue")
    page.press("#add input", "Enter")
    page.wait_for_selector("#classes li:has-text('blue')")

    def choose(name: str, item: str) -> None:
        page.click(f"#classes li:has-text('{name}') .more")
        page.click(f".menu >> text={item}")

    choose("red", "Rename")
    page.fill("dialog input", "crimson")
    page.click("dialog >> text=Rename >> nth=-1")
    studio.wait_for({0: "crimson", 1: "green"})
    page.wait_for_selector("#classes li:has-text('crimson')")
    choose("green", "Merge")
    page.select_option("dialog select", label="crimson")
    page.click("dialog button.main")
    studio.wait_for({0: "crimson", 1: "crimson"})
    page.wait_for_selector("#classes li:has-text('green')", state="detached")
    choose("crimson", "Delete")
    page.click("dialog button.main")
    studio.wait_for({})
    for _ in range(4):
        page.click("[aria-label=Undo]")
    studio.wait_for({0: "red", 1: "green"})
    page.wait_for_selector("#classes li:has-text('green')")


MARKUP = "<img src=x onerror=alert(1)>"


@in_browser
@pytest.mark.slow
def test_names_are_text_and_never_markup(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.click("#image-2")
    page.keyboard.press("/")
    page.keyboard.type(MARKUP)
    page.keyboard.press("Enter")
    studio.wait_for({0: "red", 1: "green", 2: MARKUP})
    ticked(page, 2, MARKUP)
    page.click("#image-3")
    page.keyboard.press("Shift+Q")
    page.wait_for_selector(".big-key")
    assert page.locator("img[src=x], img[onerror]").count() == 0
    assert page.locator("#classes li .name", has_text="onerror").inner_text() == MARKUP


@in_browser
@pytest.mark.slow
def test_only_what_is_visible_is_in_the_page(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    photos, total = tmp_path / "many", 3000
    photos.mkdir()
    for number in range(total):
        Image.new("RGB", (8, 8), (number % 256, number // 256, 90)).save(photos / f"{number:04}.png")
    names = [f"{number:04}.png" for number in range(total)]
    vectors = np.random.default_rng(0).normal(size=(total, 8)).astype(np.float32)
    np.savez(tmp_path / "many.npz", paths=names, vectors=vectors)
    studio = Studio(photos, tmp_path / "out", "--embedder", f"npy:{tmp_path / 'many.npz'}")
    tab = browser.new_page(viewport={"width": 1280, "height": 720})
    tab.set_default_timeout(1000 * GUARD)
    try:
        tab.goto(studio.address)
        tab.wait_for_selector("body[data-phase=ready]")
        tab.click("#tab-grid")
        tab.wait_for_selector("#image-0.loaded")
        tab.keyboard.press("End")
        tab.wait_for_selector(f"#image-{total - 1}.loaded")
        assert tab.locator(".cell").count() < 150
        assert tab.locator(f"#image-{total - 1}").get_attribute("aria-setsize") == str(total)
        tab.keyboard.press("Control+a")
        tab.wait_for_function("() => document.querySelector('#hand .said').textContent === '3,000 selected'")
        tab.keyboard.type("all")
        tab.keyboard.press("Enter")
        studio.wait(lambda: studio.get("/api/state")["labelled"] == total, "all labelled")
    finally:
        tab.close()
        studio.kill()


# -- without a browser ------------------------------------------------------------------------------------------------


def test_the_page_has_no_inline_code_and_asks_nobody_else() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|<style|\son[a-z]+=", text)
    for file in PAGE.iterdir():
        found = re.findall(r"https?://[^\s\"']+", file.read_text(encoding="utf-8"))
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", file.read_text(encoding="utf-8")
        )


def themes() -> dict[str, dict[str, str]]:
    text = (PAGE / "base.css").read_text(encoding="utf-8")
    blocks = {
        "light": r":root \{",
        "dark": r':root\[data-theme="dark"\] \{',
        "system": r':root:not\(\[data-theme="light"\]\) \{',
    }
    found = {}
    for name, start in blocks.items():
        body = re.search(start + r"(.*?)\}", text, re.DOTALL)
        assert body is not None
        found[name] = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", body.group(1)))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark", "system"])
def test_text_has_the_contrast_of_level_aa(theme: str) -> None:
    colours = themes()[theme]
    pairs = [
        (ink, ground) for ink in ("text", "muted", "accent", "good", "bad", "fresh") for ground in ("ground", "raised")
    ]
    for ink, ground in [*pairs, ("text", "sunken"), ("muted", "sunken"), ("accent-ink", "accent"), ("bad", "bad-soft")]:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {ground}"
    assert themes()["dark"] == themes()["system"]
