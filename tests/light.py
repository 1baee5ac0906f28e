"""``python tests/light.py``: the tests of what the light install has, run by its own Python; PyTorch must not be there.

Test files that need packages which only developers have are left out by name; the rest of what they cover is tested in
the full install.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = (
    "test_without_torch.py",
    "estimator/test_estimator.py",
    "estimator/test_rivals.py",
    "estimator/test_benchmark.py",
    "embedders/test_embedding.py",
    "embedders/test_store.py",
    "labelling/test_label.py",
    "labelling/test_predict.py",
    "labelling/test_export.py",
    "labelling/test_report.py",
    "labelling/test_session.py",
    "studio/test_studio_server.py",
    "studio/test_studio_api.py",
)


def main() -> int:
    if importlib.util.find_spec("torch") is not None:
        print("PyTorch is installed here: this is not the light install", file=sys.stderr)
        return 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return pytest.main(["-m", "not slow", "-p", "no:cacheprovider", *(str(HERE / name) for name in FILES)])


if __name__ == "__main__":
    sys.exit(main())
