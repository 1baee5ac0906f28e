"""The public names: ``docs/api.md`` lists them with their signatures, and they are what it says.

``python tests/test_api.py`` prints the list, to be put there after a change that is meant.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import handful
from handful.embedders.embedding import Embedded
from handful.methods import Method

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
CLASSES = {"TACClassifier": handful.TACClassifier, "LabelledKFold": handful.LabelledKFold, "Head": handful.Head}
METHOD = ("attach", "forward", "loss", "trajectory")  # what a method of one's own may override or call
LEFT_OUT = {"adapt", "frame"}  # of a head: how the estimator uses it


def signature(function: Any) -> str:
    """Names, kinds and defaults of the parameters; types are left to mypy, and functions as defaults are ``...``."""
    found = inspect.signature(function)
    parameters = []
    for one in found.parameters.values():
        plain = one.replace(annotation=inspect.Parameter.empty)
        shown = callable(one.default) or "factory" in repr(one.default)
        has_default = one.default is not inspect.Parameter.empty
        parameters.append(plain.replace(default=_Dots() if shown and has_default else one.default))
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class _Dots:
    def __repr__(self) -> str:
        return "..."


def members(cls: type) -> Iterator[str]:
    """The public methods and properties that a class of this package has itself."""
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") or name in LEFT_OUT:
            continue
        value = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(value, property):
            yield name
        elif inspect.isfunction(value):
            yield name + signature(value)


def listed() -> list[str]:
    lines = []
    for name in sorted(set(handful.__all__) - {"__version__", "functional", "methods"}):
        value = getattr(handful, name)
        lines.append(f"handful.{name}" + ("" if name == "HandfulError" else signature(value)))
        lines += [f"handful.{name}.{member}" for member in members(CLASSES[name])] if name in CLASSES else []
    lines.append(f"handful.methods{signature(handful.methods)}")
    lines += [f"handful.methods.Method.{name}{signature(getattr(Method, name))}" for name in METHOD]
    public = handful.functional.__all__
    lines += [f"handful.functional.{name}{signature(getattr(handful.functional, name))}" for name in sorted(public)]
    lines.append(f"handful.embed(...) -> ({', '.join(Embedded._fields)})")
    return lines


def test_the_page_has_the_names_and_signatures():
    block = re.search(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None and block[1].splitlines() == listed(), "python tests/test_api.py prints the new list"


def test_every_name_is_there_and_documented():
    assert list(handful.__all__) == sorted(handful.__all__)
    assert set(handful.__all__) <= set(dir(handful))
    for name in handful.__all__:
        assert inspect.getdoc(getattr(handful, name)), name
    with pytest.raises(AttributeError, match="module 'handful' has no attribute 'nothing'"):
        _ = handful.nothing


def test_the_fitted_attributes_are_there():
    text = PAGE.read_text(encoding="utf-8").partition("Fitted attributes of `TACClassifier`:")[2]
    model = handful.TACClassifier().fit([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2]], ["a", "b", ""])
    assert set(re.findall(r"`(\w+_)`", text)) == {name for name in vars(model) if re.fullmatch(r"[a-z]\w*_", name)}


def test_a_user_s_types_are_checked(tmp_path):
    """A program of a user's: right types pass ``mypy --strict``, a wrong one does not."""
    (tmp_path / "program.py").write_text(
        "import handful\n"
        "vectors, names, broken = handful.embed('photos')\n"
        "found: list[str] = names\n"
        "model: handful.TACClassifier = handful.TACClassifier(iterations=3).fit(vectors, ['cat', ''])\n"
        "handful.embed(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and errors[0].startswith('program.py:5: error: Argument 1 to "embed"'), done.stdout


if __name__ == "__main__":
    print("\n".join(listed()))
