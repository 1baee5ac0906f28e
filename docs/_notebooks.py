"""Run notebooks: ``python docs/_notebooks.py [NAME...]`` runs those of docs/tutorials and stores what they print.

The cells are plain Python, without commands of a particular notebook program, and are run in order in one namespace.
The tests run the same function without storing anything.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"


def run(path: Path, folder: Path) -> list[list[dict[str, Any]]]:
    """Run the code cells of a notebook in ``folder``; give the outputs of each."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    before = Path.cwd()
    os.chdir(folder)
    try:
        return [
            _run_cell("".join(cell["source"]), f"{path.name}, cell {number}", namespace)
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    finally:
        os.chdir(before)


def _run_cell(source: str, name: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line if that is an expression."""
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307 - our own cells
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def store(path: Path) -> None:
    """Run a notebook and write what its cells print into it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        outputs = run(path, Path(folder))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for cell, found in zip(code, outputs, strict=True):
        cell["outputs"], cell["execution_count"] = found, None
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    beside = path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    for wanted in sys.argv[1:] or sorted(one.stem for one in TUTORIALS.glob("*.ipynb")):
        print(wanted, file=sys.stderr)
        store(TUTORIALS / f"{Path(wanted).stem}.ipynb")
