"""The page of the studio in a real browser: what a person does with keys and mouse is what the API then says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from studio_browser import (
    COUNT,
    Studio,
    at_rest,
    chosen,
    classes_shown,
    colour_of,
    in_a_row,
    in_browser,
    name_first,
    said,
    ticked,
    two_classes,
    unticked,
)

pytest_plugins = ["studio_browser_fixtures"]
PAGE = Path(__file__).parents[2] / "src" / "handful" / "studio" / "page"

# -- in the browser ---------------------------------------------------------------------------------------------------


@in_browser
@pytest.mark.slow
def test_groups_are_named_and_the_rest_follows(page: Any, studio: Studio) -> None:
    studio.wait_for_surroundings()
    page.click("#tab-groups")
    page.wait_for_selector(".group")
    expected = {}
    for _ in range(2):
        group = page.locator(".group:not(.done)").first  # which this is changes only when one is named
        examples = group.locator(".example").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        numbers = [int(re.search(r"\d+", text).group()) for text in examples]
        name = colour_of(numbers[0])
        for at, number in enumerate(numbers):
            if colour_of(number) == name:
                expected[number] = name
            else:  # does not belong: a click leaves it out
                group.locator(".example").nth(at).click()
                page.wait_for_selector(f".example[aria-label*='{number} '][aria-pressed=false]")
        group.locator("input").fill(name)
        group.locator("input").press("Enter")
        page.wait_for_selector(f".group.done[data-name={name}]")
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
    chosen(page, [4])
    page.keyboard.press("1")  # and on to the next image
    page.keyboard.press("2")
    page.keyboard.press("0")
    chosen(page, [7])
    all_five = {0: "red", 1: "green", 4: "red", 5: "green", 6: "none-of-these"}
    studio.wait_for(all_five)
    for number, name in ((4, "red"), (5, "green"), (6, "none of these")):
        ticked(page, number, name)
    page.keyboard.press("ArrowLeft")
    chosen(page, [6])
    page.keyboard.press("Backspace")
    studio.wait_for({0: "red", 1: "green", 4: "red", 5: "green"})
    unticked(page, 6)
    page.keyboard.press("Control+z")
    studio.wait_for(all_five)
    ticked(page, 6, "none of these")
    for _ in range(3):
        page.keyboard.press("Control+z")
    studio.wait_for({0: "red", 1: "green"})
    for number in (4, 5, 6):
        unticked(page, number)
    page.keyboard.press("Control+Shift+z")
    studio.wait_for({0: "red", 1: "green", 4: "red"})
    ticked(page, 4, "red")
    page.keyboard.press("Home")
    chosen(page, [0])
    row = in_a_row(page)
    page.keyboard.press("Shift+ArrowDown")  # a row and one
    chosen(page, list(range(row + 1)))
    page.keyboard.press("2")
    studio.wait_for(dict.fromkeys(range(row + 1), "green"))


@in_browser
@pytest.mark.slow
def test_labels_by_mouse(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.click("#image-2")
    page.click("#image-4", modifiers=["Shift"])
    page.click("#image-8", modifiers=["Control"])
    chosen(page, [2, 3, 4, 8])
    page.click(".chip-button:has-text('red')")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red"})
    ticked(page, 8, "red")
    chosen(page, [])
    first, last = at_rest(page, 6), at_rest(page, 7)
    page.mouse.move(first["x"] + 30, first["y"] + 30)
    page.mouse.down()
    page.mouse.move(last["x"] + 40, last["y"] + 50, steps=8)
    page.mouse.up()
    chosen(page, [6, 7])
    page.click("#classes li:has-text('green') .key")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red", 6: "green", 7: "green"})
    ticked(page, 7, "green")
    page.click("[aria-label=Undo]")
    studio.wait_for({0: "red", 1: "green", 2: "red", 3: "red", 4: "red", 8: "red"})
    unticked(page, 7)
    page.keyboard.press("Control+a")
    page.wait_for_selector("#hand .said:has-text('40 selected')")
    page.click("text=Take back")
    studio.wait_for({})


@in_browser
@pytest.mark.slow
def test_a_drag_from_an_image_selects_up_to_another_and_from_between_a_box(page: Any, studio: Studio) -> None:
    row = in_a_row(page)
    first, last = at_rest(page, 1), at_rest(page, row + 2)

    def drag(x: float, y: float) -> None:
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(last["x"] + 40, last["y"] + 50, steps=8)
        page.mouse.up()

    drag(first["x"] + 30, first["y"] + 30)
    chosen(page, list(range(1, row + 3)))
    drag(first["x"] - 5, first["y"] + 30)
    chosen(page, [1, 2, row + 1, row + 2])


@in_browser
@pytest.mark.slow
def test_a_screen_is_accepted_but_what_is_selected(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait_for_model()
    page.select_option("[aria-label='Sort by']", "alike")
    page.wait_for_selector(".run")
    page.click("[data-show=unlabelled]")
    page.wait_for_selector("#image-0", state="detached")
    page.wait_for_function("() => document.querySelectorAll('.cell:not([hidden])').length > 12")
    page.wait_for_function("() => !document.querySelector('.content.gliding')")
    shown = page.evaluate("""() => { const grid = document.getElementById("grid").getBoundingClientRect();
        return [...document.querySelectorAll(".cell:not([hidden])")].filter((one) => {
            const box = one.getBoundingClientRect();
            return box.top < grid.bottom - 0.7 * box.height && box.bottom > grid.top + 0.7 * box.height; })
            .map((one) => [one.number, one.querySelector(".name").textContent]); }""")
    assert len(shown) > 12
    left = shown[1][0]
    page.click(f"#image-{left}")
    chosen(page, [left])
    page.keyboard.press("Shift+Space")
    said(page, "without 1 image")
    given = studio.given()
    assert left not in given and len(given) > 10
    assert given.items() <= ({0: "red", 1: "green"} | dict(shown)).items(), "what was on the screen, as it was shown"


@in_browser
@pytest.mark.slow
def test_a_key_labels_the_image_under_the_pointer(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    page.keyboard.press("Escape")
    chosen(page, [])
    page.hover("#image-5")
    page.keyboard.press("2")
    studio.wait_for({0: "red", 1: "green", 5: "green"})
    page.keyboard.press("1")  # the pointer has not moved: what is under it by now was not chosen
    said(page, "Select an image first")
    page.hover("#image-8")
    page.keyboard.press("1")
    studio.wait_for({0: "red", 1: "green", 5: "green", 8: "red"})
    page.click("#image-2")
    chosen(page, [2])
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
    page.wait_for_selector("body[data-phase=ready]")
    page.click("#tab-grid")
    ticked(page, 0, "red")
    ticked(page, 1, "green")
    classes_shown(page, ["red", "green"])


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
    page.wait_for_selector("dialog[open]")
    for form in ("csv", "labels"):
        page.check(f"input[value={form}]")
        with page.expect_download() as download:
            page.click("dialog button.main")
        page.wait_for_selector("dialog .said:has-text('Downloaded')")
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
        second = page.locator(".big-name").nth(1).inner_text()  # stays as long as the image does
        if turn == 0:  # a class that is new; the keys are free again after it
            expected[number] = "violet"
            page.keyboard.type("violet")
            page.keyboard.press("Enter")
        else:
            expected[number] = second
            page.keyboard.press("ArrowRight")
        studio.wait_for(expected)
        page.wait_for_function(f"() => !document.querySelector('.easel .large').src.includes('/{number}?')")
    page.keyboard.press("Backspace")
    del expected[number]
    studio.wait_for(expected)


@in_browser
@pytest.mark.slow
def test_nothing_moves_away_under_a_finger(page: Any, studio: Studio) -> None:
    """Elsewhere labels are given meanwhile: what has the focus or is about to be clicked stays the same element."""
    two_classes(page, studio)
    studio.wait_for_model()
    page.keyboard.press("Shift+Q")
    page.wait_for_selector(".big-key")
    parts = page.evaluate_handle("() => [...document.querySelectorAll('.big-key, #classes .open, #classes .more')]")
    words = page.evaluate("all => all.map((one) => one.querySelector('.big-name, .name')?.textContent)", parts)
    page.focus("#classes .open")
    before = page.evaluate("document.querySelector('#classes .total').textContent")
    number = int(re.search(r"\d+", page.get_attribute(".easel .large", "src")).group())
    others = [one for one in range(2, COUNT) if one != number][:10]
    studio.post("/api/labels", {"images": others, "label": "red"})
    page.wait_for_function("(before) => document.querySelector('#classes .total').textContent !== before", arg=before)
    assert page.evaluate("all => all.every((one) => one.isConnected)", parts)
    assert page.evaluate("all => all.map((one) => one.querySelector('.big-name, .name')?.textContent)", parts) == words
    assert page.evaluate("document.activeElement.matches('#classes .open')")


@in_browser
@pytest.mark.slow
def test_a_lasso_on_the_map_selects(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait_for_surroundings()
    page.keyboard.press("Shift+M")
    page.wait_for_selector("#map[data-version='2']")
    page.wait_for_function("() => document.querySelector('.points').width > 300")
    box = page.locator("#map").bounding_box()
    left, top, right, bottom = box["x"] + 4, box["y"] + 4, box["x"] + box["width"] - 4, box["y"] + box["height"] - 4
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
    classes_shown(page, ["red", "green", "blue"])

    def choose(name: str, item: str) -> None:
        page.click(f"#classes li:has-text('{name}') .more")
        page.click(f".menu >> text={item}")

    choose("red", "Rename")
    page.fill("dialog input", "crimson")
    page.click("dialog >> text=Rename >> nth=-1")
    studio.wait_for({0: "crimson", 1: "green"})
    classes_shown(page, ["crimson", "green", "blue"])
    choose("green", "Merge")
    page.select_option("dialog select", label="crimson")
    page.click("dialog button.main")
    studio.wait_for({0: "crimson", 1: "crimson"})
    classes_shown(page, ["crimson", "blue"])
    choose("crimson", "Delete")
    page.click("dialog button.main")
    studio.wait_for({})
    classes_shown(page, ["blue"])
    for _ in range(4):
        page.click("[aria-label=Undo]")
    studio.wait_for({0: "red", 1: "green"})
    classes_shown(page, ["red", "green"])


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
def test_only_what_is_visible_is_in_the_page(
    open_page: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    photos, total = tmp_path / "many", 3000
    photos.mkdir()
    for number in range(total):
        Image.new("RGB", (8, 8), (number % 256, number // 256, 90)).save(photos / f"{number:04}.png")
    names = [f"{number:04}.png" for number in range(total)]
    vectors = np.random.default_rng(0).normal(size=(total, 8)).astype(np.float32)
    np.savez(tmp_path / "many.npz", paths=names, vectors=vectors)
    studio = Studio(photos, tmp_path / "out", "--embedder", f"npy:{tmp_path / 'many.npz'}")
    try:
        tab = open_page(studio.address)
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
    """The colours of the page by theme: each stands once, as ``light-dark(one, other)``."""
    text = (PAGE / "base.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", text)
    return {"light": {name: one for name, one, _ in pairs}, "dark": {name: one for name, _, one in pairs}}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_of_level_aa(theme: str) -> None:
    colours = themes()[theme]
    pairs = [
        (ink, ground) for ink in ("text", "muted", "accent", "good", "bad", "fresh") for ground in ("ground", "raised")
    ]
    for ink, ground in [*pairs, ("text", "sunken"), ("muted", "sunken"), ("accent-ink", "accent"), ("bad", "bad-soft")]:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {ground}"


def test_a_colour_stands_once() -> None:
    names = re.findall(r"--([a-z-]+):", (PAGE / "base.css").read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) and "prefers-color-scheme" not in (PAGE / "base.css").read_text("utf-8")


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(
    open_page: Callable[..., Any], studio: Studio, system: str
) -> None:
    tab = open_page(studio.address, color_scheme=system)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    seen = {"light": "rgb(244, 245, 247)", "dark": "rgb(20, 22, 27)"}
    other = "dark" if system == "light" else "light"
    assert tab.evaluate(ground) == seen[system]
    tab.click(f"[aria-label={other.capitalize()}]")
    tab.wait_for_function(f"() => getComputedStyle(document.body).backgroundColor === '{seen[other]}'")
    tab.reload()
    tab.wait_for_selector("body[data-phase=ready]")
    assert tab.evaluate(ground) == seen[other]
