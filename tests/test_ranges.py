"""The ranges in pyproject.toml: their lower ends are the versions that ``make test-lowest`` installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_lowest_versions_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = dict(line.split(">=") for line in project["dependencies"])
    lines = (ROOT / "tests" / "requirements-lowest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert tested.keys() == allowed.keys()
    for name, version in allowed.items():
        assert re.fullmatch(rf"{re.escape(version)}(\.0)*", tested[name]), (name, version, tested[name])


def test_a_plain_install_has_no_pytorch_and_the_extras_of_earlier_install_lines():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heavy = {"torch", "lightning-fabric", "ray", "transformers", "onnx"}
    assert not heavy & {re.split(r"[><=]", line)[0] for line in project["dependencies"]}
    assert {"research", "ray", "photos", "studio", "dev"} <= project["optional-dependencies"].keys()
