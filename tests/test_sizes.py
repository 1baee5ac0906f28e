"""No file, function or list of parameters is longer than one can take in; what is, is named here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "handful"
MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 350, 60, 8
# A command's parameters are its options, one each; so its lines are those of its body, and its parameters do not count.
COMMANDS = "cli/"

EXCEPTIONS = {
    "functional.py": "the formulas are read in one file",
    "functional.py tac": "public: its parameters are those of the formula",
    "labelling/__init__.py label_images": "public: its parameters are the options of a command",
    "methods/alpha_tim.py __init__": "its parameters are the options of the method",
    "methods/tac_free.py __init__": "its parameters are the options of the method",
    "methods/laplacian_shot.py __init__": "its parameters are the options of the method",
    "methods/lst.py __init__": "its parameters are the options of the method",
    "methods/partial_projection.py partial_tac": "its parameters are those of the formula",
    "methods/prwn.py __init__": "its parameters are the options of the method",
    "methods/tapnet.py __init__": "its parameters are the options of the method",
    "methods/tpn.py __init__": "its parameters are the options of the method",
    "runs/evaluation.py evaluate_run": "public: its parameters are the options of a command",
    "runs/training.py train": "the training loop is read from top to bottom",
}


def too_long(source: Path = SOURCE) -> Iterator[str]:
    """Files, and functions with their file, that are longer than allowed or take more parameters."""
    for path in sorted(source.rglob("*.py")):
        name, text = path.relative_to(source).as_posix(), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MOST_LINES:
            yield name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                command = name.startswith(COMMANDS) and not node.name.startswith("_")
                if _lines(node, command) > MOST_FUNCTION_LINES or (not command and _parameters(node) > MOST_PARAMETERS):
                    yield f"{name} {node.name}"


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef, command: bool) -> int:
    start = node.lineno
    if command:
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        start = body[0].lineno
    return (node.end_lineno or start) - start + 1


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    taken = node.args
    named = [one.arg for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")]) + sum(map(bool, (taken.vararg, taken.kwarg)))


def test_nothing_is_too_long_without_a_reason() -> None:
    found = set(too_long())
    assert not found - set(EXCEPTIONS), "shorten these, or give a reason"
    assert not set(EXCEPTIONS) - found, "these have been shortened: take them off the list"


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    parameters = ", ".join(f"p{index}" for index in range(9))
    body = "\n".join(["    x = 1"] * 60)
    (tmp_path / "long.py").write_text("\n" * 351)
    (tmp_path / "some.py").write_text(
        f"class C:\n    def method(self, {parameters[:-4]}): ...\ndef wide({parameters}): ...\ndef tall():\n{body}\n"
    )
    (tmp_path / "cli" / "yours.py").write_text(
        f"def command({parameters}):\n    '''Help.'''\n{body}\ndef _wide({parameters}): ...\n"
    )
    assert list(too_long(tmp_path)) == ["cli/yours.py _wide", "long.py", "some.py wide", "some.py tall"]
