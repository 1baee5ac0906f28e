"""docs/guarantees.md names the test that holds each promise: they all exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_promise_has_its_test():
    page = (TESTS.parent / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    for row in rows:
        file = None
        named = re.findall(r"`([\w/]+\.py)?(?:::)?(test_\w+)?`", row.split("|")[2])
        assert any(name for pair in named for name in pair), row
        for path, test in named:
            file = TESTS / path if path else file
            assert file is not None and file.is_file(), (row, path)
            assert not test or f"def {test}(" in file.read_text(encoding="utf-8"), (file, test)
