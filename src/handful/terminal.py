"""What reaches a terminal: words as they are, whatever is in them, since strangers name files and classes."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text


class Terminal(Console):
    """A console for which no string is markup, an emoji or a control sequence: each is shown letter by letter.

    This holds for cells and titles of tables as well. Style is said beside the words (``style=``), never in them.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # all strings come by here, to be measured and to be shown
        return super().render_str(printable(text), **options)


def printable(name: str) -> str:
    r"""A name without what could confuse a terminal or a page: the characters of which are written as escapes.

    These are control characters, those that turn the direction of text, and bytes that are no text.

    >>> print(printable("a\x1b[2J\u202eb\udcff"))
    a\x1b[2J\u202eb\udcff
    """
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode-escape", "surrogatepass").decode() for c in name)


def json_text(content: Any) -> str:
    """JSON with letters of all scripts as they are; what is not printable is written as escapes."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
