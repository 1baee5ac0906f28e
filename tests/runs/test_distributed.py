"""Several processes do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from handful import HandfulError
from handful.checkpoint import load_checkpoint
from handful.runs.distributed import check_shares, share

WORKER = Path(__file__).parent / "several_processes.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run(command, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tac", "metagan"])
def test_two_processes_train_as_one(method, tmp_path):
    """The same episodes per step: the same loss curve over 100 steps, and the same model in the end."""
    for name, starter in (("one", [sys.executable]), ("two", TORCHRUN)):
        done = run([*starter, str(WORKER), str(tmp_path / name), method])
        assert done.returncode == 0, done.stderr
    one, two = (torch.tensor(losses(tmp_path / name), dtype=torch.float64) for name in ("one", "two"))
    assert len(one) == 100
    if method == "metagan":  # its noise is drawn by each process, so only the first discriminator's step is the same
        assert two.isfinite().all()
        return
    print(f"largest difference of the losses of {len(one)} steps: {(one - two).abs().max():.1e}")
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    (first, _), (second, _) = (load_checkpoint(tmp_path / name / "checkpoint", "last") for name in ("one", "two"))
    for name in first:
        if name.startswith("model."):
            torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-5)


def test_the_command_starts_its_processes_and_speaks_once(tmp_path):
    command = [sys.executable, "-m", "handful", "train", "--method", "pn", "--ways", "4", "--queries", "2",
               "--episodes", "4", "--validate-every", "2", "--validation-episodes", "2", "--device", "cpu",
               "--devices", "2", "--out", str(tmp_path / "run")]  # fmt: skip
    uneven = run(command)
    assert uneven.returncode == 2
    assert uneven.stderr.count("cannot be shared out evenly") == 1
    assert "Traceback" not in uneven.stderr
    command += ["--episodes-per-step", "2"]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4 episodes; best validation accuracy") == 1
    assert len(losses(tmp_path / "run")) == 2
    again = run(command)
    assert again.returncode == 2
    assert again.stderr.count("already holds this run") == 1, again.stderr


def test_shares_cover_the_step():
    taken = [share(10, 6, rank, 3) for rank in range(3)]
    assert taken == [(10, 2), (12, 2), (14, 2)]
    with pytest.raises(HandfulError, match="--episodes-per-step 1 cannot be shared out evenly"):
        check_shares(100, 1, 2)
