"""``python tests/without_torch.py WORDS...``: the command ``handful WORDS...`` without PyTorch and what comes with it.

At the end, standard error says which of the blocked packages are imported all the same: none. With UNBLOCKED=1 in the
environment nothing is blocked, and it says which of them the command imported of its own accord.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

BLOCKED = ("torch", "lightning_fabric", "lightning_utilities", "torchmetrics", "transformers", "ray", "onnx")


class PathFinder(importlib.machinery.PathFinder):
    """Finds every installed module but these."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in BLOCKED:
            return None
        return super().find_spec(fullname, path, target)


def block() -> None:
    """From now on, an import of these packages fails as if they were not installed."""
    place = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path[place] = PathFinder


if __name__ == "__main__":
    if not os.environ.get("UNBLOCKED"):
        block()
    from handful.cli import main

    try:
        main()
    finally:
        print("blocked and imported:", [name for name in BLOCKED if name in sys.modules], file=sys.stderr)
