"""The layers of the package: no module imports upward, and no imports go in a circle.

``python tests/test_layers.py`` prints which folder imports which.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

PACKAGE = "handful"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

Edge = tuple[str, str]  # the importing module and the imported one, without the package's name

# From the top down. A room is a folder, or a module that lies in none.
LAYERS = (
    ("cli", "__main__"),
    ("experiments", "labelling", "bench", "studio"),
    ("reports", "runs", "estimator"),
    ("methods", "embedders"),
    ("datasets", "functional", "episode", "sampling", "_linalg", "_spans"),
    ("io", "publish", "checkpoint", "progress", "terminal", "machine", "plugins", "errors"),
)
LEVEL = {room: -depth for depth, rooms in enumerate(LAYERS) for room in rooms}
CLOSED = {  # rooms that a room may not import though their layer would allow it: it works without trainings
    "labelling": {"runs", "experiments", "studio"},
    "studio": {"runs", "experiments"},
    "estimator": {"runs", "experiments"},
    "reports": {"runs"},
}


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Path of each module by its dotted name below the package; the package itself is ``""``."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Iterable[str]) -> set[str]:
    """Modules of the package that a module imports: anywhere in it, also in functions and for type checking alone."""
    known = set(known)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    found.add(_deepest(alias.name.partition(".")[2], known))
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = package.split(".") if package else []
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            elif (node.module or "").split(".")[0] == PACKAGE:
                base = (node.module or "").partition(".")[2]
            else:
                continue
            for alias in node.names:  # a module of that package, or a name in it
                found.add(_deepest(f"{base}.{alias.name}".lstrip("."), known))
    return found - {name}


def _deepest(name: str, known: set[str]) -> str:
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def edges(source: Path = SOURCE) -> set[Edge]:
    """Every import between modules of the package; its ``__init__``, which re-exports from everywhere, left out."""
    known = modules(source)
    found = {(name, other) for name, path in known.items() if name for other in imports(name, path, known)}
    return {edge for edge in found if edge[1]}


def room(name: str) -> str:
    return name.split(".")[0]


def upward(found: set[Edge]) -> set[Edge]:
    """Imports of a higher layer, and those of a room that is closed to the importing one."""
    return {
        (name, other)
        for name, other in found
        if LEVEL[room(other)] > LEVEL[room(name)] or room(other) in CLOSED.get(room(name), ())
    }


def circles(found: set[Edge]) -> list[list[str]]:
    """Groups of nodes each of which imports, through others, each (Tarjan's strongly connected components)."""
    targets: dict[str, set[str]] = {}
    for name, other in found:
        targets.setdefault(name, set()).add(other)
        targets.setdefault(other, set())
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in sorted(targets[node]):
            if target not in order:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], order[target])
        if lowest[node] == order[node]:
            start = stack.index(node)
            group, stack[start:] = stack[start:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(targets):
        if node not in order:
            visit(node)
    return groups


def between_rooms(found: set[Edge]) -> set[Edge]:
    return {(room(name), room(other)) for name, other in found if room(name) != room(other)}


def between_modules(found: set[Edge]) -> set[Edge]:
    """Without a package's ``__init__`` importing its own modules, which re-exports them."""
    return {(name, other) for name, other in found if not other.startswith(f"{name}.")}


def listed(found: Iterable[Edge]) -> str:
    return "\n".join(f"  {name} -> {other}" for name, other in sorted(found))


def graph(found: set[Edge]) -> str:
    """Layer by layer, from the top: what each room imports."""
    rooms = between_rooms(found)
    lines = []
    for layer in LAYERS:
        for name in layer:
            below = sorted((other for start, other in rooms if start == name), key=lambda other: (-LEVEL[other], other))
            lines.append(f"{name:12} -> {', '.join(below)}" if below else name)
        lines.append("")
    return "\n".join(lines).rstrip()


def test_every_module_has_a_layer() -> None:
    without = {room(name) for name in modules() if name} - set(LEVEL)
    assert not without, f"say in LAYERS where these belong: {', '.join(sorted(without))}"


def test_the_design_page_shows_these_layers() -> None:
    page = (SOURCE.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    block = page.partition("## The layers")[2].split("```")[1]
    shown = [set(re.findall(r"\w+", row)) for row in block.strip().splitlines()]
    assert shown == [{name for name in layer if not name.startswith("_")} for layer in LAYERS]


def test_nothing_is_imported_upward() -> None:
    wrong = upward(edges())
    assert not wrong, f"imports against the layers:\n{listed(wrong)}"


@pytest.mark.parametrize("between", [between_rooms, between_modules])
def test_no_imports_go_in_a_circle(between) -> None:
    found = between(edges())
    wrong = {edge for group in circles(found) for edge in found if set(edge) <= set(group)}
    assert not wrong, f"imports in a circle:\n{listed(wrong)}"


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("__init__", "io", "errors", "progress", "machine", "runs/__init__", "runs/config", "runs/folder"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "runs/training.py").write_text(
        "from typing import TYPE_CHECKING\nimport json, handful.io\nfrom .. import errors, __version__\n"
        "from . import config\nfrom .folder import Run\nif TYPE_CHECKING:\n    from ..progress import Bar\n"
        "def train():\n    from handful.machine import cores\n"
    )
    assert edges(tmp_path) == {
        ("runs.training", other)
        for other in ("io", "errors", "runs.config", "runs.folder", "progress", "machine")
    }  # fmt: skip


def test_upward_imports_and_circles_are_told_apart() -> None:
    found = {("cli.train", "runs.config"), ("runs.config", "cli.train"), ("io", "errors"), ("errors", "terminal"),
             ("terminal", "io"), ("labelling.label", "runs.config")}  # fmt: skip
    assert upward(found) == {("runs.config", "cli.train"), ("labelling.label", "runs.config")}
    assert circles(found) == [["cli.train", "runs.config"], ["errors", "io", "terminal"]]


if __name__ == "__main__":
    print(graph(edges()))
