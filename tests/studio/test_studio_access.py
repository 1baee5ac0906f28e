"""What a screen reader is told of the page: every control has a role and a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from studio_browser import Studio, chosen, in_browser, two_classes

pytest_plugins = ["studio_browser_fixtures"]
NAMED = {
    "button", "link", "textbox", "searchbox", "combobox", "slider", "checkbox", "radio", "radiogroup", "tab", "tablist",
    "tabpanel", "option", "listbox", "menu", "menuitem", "image", "img", "progressbar", "dialog", "region", "toolbar",
    "complementary", "list", "article",
}  # fmt: skip


def tree(page: Any) -> Iterator[tuple[str, str]]:
    """Role and name of all that is there for a screen reader."""
    session = page.context.new_cdp_session(page)
    for node in session.send("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored"):
            yield node["role"]["value"], node.get("name", {}).get("value", "").strip()
    session.detach()


def named(page: Any, *expected: tuple[str, str]) -> None:
    found = list(tree(page))
    assert not [role for role, name in found if role in NAMED and not name]
    assert set(expected) <= set(found), set(expected) - set(found)


@in_browser
@pytest.mark.slow
def test_every_control_has_a_role_and_a_name(page: Any, studio: Studio) -> None:
    two_classes(page, studio)
    studio.wait_for_model()
    studio.wait_for_surroundings()
    page.click("#image-3")
    chosen(page, [3])
    page.wait_for_selector("#hand:visible .chip-button")
    every = [("tab", "Grid"), ("button", "Undo"), ("button", "Export"), ("button", "Change the class red"),
             ("textbox", "Add a class, or several with commas between them")]  # fmt: skip
    named(page, *every, ("listbox", "Images"), ("option", "00.png: red, given"), ("combobox", "Sort by"),
          ("slider", "Size of the images"), ("slider", "Accept labels surer than"), ("combobox", "Name the selection"),
          ("button", "Accept screen"), ("searchbox", "Find a name"))  # fmt: skip
    page.click("#classes .more >> nth=0")
    page.wait_for_selector(".menu")
    named(page, ("menu", "Change the class red"), ("menuitem", "Rename…"), ("menuitem", "Delete…"))
    page.keyboard.press("Escape")
    for opened, title in (("Shift+E", "Export"), ("?", "Keys")):
        page.focus("#grid")
        page.keyboard.press(opened)
        page.wait_for_selector(f"dialog[open][aria-label={title}]")
        named(page, ("dialog", title), ("button", "Close"))
        page.click("dialog [aria-label=Close]")
        page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("Enter")
    page.wait_for_selector(".loupe")
    named(page, ("dialog", "Large image"))
    page.keyboard.press("Escape")
    page.wait_for_selector(".loupe", state="detached")
    for key, there, expected in (
        ("Shift+Q", ".big-key", ("combobox", "Name this image")),
        ("Shift+M", "#map[data-version='2']", ("button", "Select with a lasso")),
        ("Shift+O", ".group", ("combobox", "Name the group of 10 images")),
    ):
        page.focus("#tab-grid")
        page.keyboard.press(key)
        page.wait_for_selector(there)
        named(page, *every, expected)


@in_browser
@pytest.mark.slow
def test_the_cursor_is_told_to_a_screen_reader(page: Any, studio: Studio) -> None:
    page.click("#image-2")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#grid[aria-activedescendant=image-3]")
    assert page.get_attribute("#image-3", "aria-selected") == "true"
    assert page.get_attribute("#image-3", "role") == "option" and page.get_attribute("#image-3", "aria-posinset") == "4"
