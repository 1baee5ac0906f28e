"""Embedding on a Ray cluster of two machines, parts of which are killed while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gated
import numpy as np
import pytest
from PIL import Image

from handful.embedders.bulk import embed_sources
from handful.embedders.vectors import VectorFolder

HERE = Path(__file__).parent
SOURCE = str(Path(sys.modules["handful"].__file__).parents[1])
IMAGES, SHARD = 480, 8
PATIENCE = 240  # seconds that nothing may happen for, on a machine that is busy with other things


def photographs(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        (folder / f"{number % 4}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number % 4}" / f"{number:04d}.png")
    return folder


def until(what, *, patience: float = PATIENCE):
    """Wait for something to be true; by what happens, not by the clock."""
    end = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.05)
    return found


def shards(out: Path) -> int:
    return len(list(out.glob("*-*.json")))


def workers(folder: Path) -> set[int]:
    """Processes that are embedding."""
    found = {int(path.stem) for path in folder.glob("*.log")}
    return {pid for pid in found if Path(f"/proc/{pid}").exists()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_killed_worker_a_lost_machine_and_a_killed_driver_lose_no_image(tmp_path, monkeypatch):
    pytest.importorskip("ray.data")
    from ray.cluster_utils import Cluster

    images, out, gate = photographs(tmp_path / "photos", IMAGES), tmp_path / "vectors", tmp_path / "gate"
    gate.mkdir()
    monkeypatch.setattr(gated, "FOLDER", gate)
    for name, value in {
        "GATED": str(gate), "PYTHONPATH": os.pathsep.join([SOURCE, str(HERE)]), "RAY_USAGE_STATS_ENABLED": "0",
        "HANDFUL_CACHE": str(tmp_path / "cache"), "RAY_enable_metrics_collection": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    small = {"object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    drivers: list[subprocess.Popen] = []

    def start() -> subprocess.Popen:
        command = [
            sys.executable, "-m", "handful", "embed", str(images), "--out", str(out), "--embedder", "gated:gated",
            "--shard-size", str(SHARD), "--ray", cluster.address, "--json",
        ]  # fmt: skip
        with (tmp_path / f"{len(drivers)}.json").open("wb") as said:
            drivers.append(subprocess.Popen(command, cwd=tmp_path, stdout=said))
        return drivers[-1]

    def let(count: int, held: int) -> None:
        """Let so many more units be done; then wait until the workers are held in the middle of others."""
        before = shards(out)
        allowed = gated.started() + count
        (gate / "new").write_text(str(allowed))
        (gate / "new").replace(gate / "allowed")
        until(lambda: gated.started() >= allowed + held and shards(out) > before)
        assert drivers[-1].poll() is None and shards(out) < IMAGES // (2 * SHARD), "it is in the middle"

    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        start()
        until(lambda: len(workers(gate)) == 2)
        let(4, held=2)
        os.kill(min(workers(gate)), signal.SIGKILL)
        let(4, held=2)
        cluster.remove_node(nodes[1], allow_graceful=False)
        let(4, held=1)
        drivers[0].kill()
        drivers[0].wait()
        done = shards(out)
        (gate / "allowed").write_text(str(10**9))
        assert start().wait(PATIENCE) == 0
    finally:
        (gate / "allowed").write_text(str(10**9))
        for driver in drivers:
            driver.kill()
            driver.wait()
        cluster.shutdown()
    last = json.loads((tmp_path / "1.json").read_text())
    assert last["units_done_before"] >= done and not last["problems"] and not last["broken"]
    found = VectorFolder(out)
    names = Counter(found.names)
    assert set(names.values()) == {1} and len(names) == len(found) == IMAGES
    assert not list(found.damaged()) and not list(out.glob(".*.part"))
    assert {path.stem for path in out.glob("*.npy")} == {path.stem for path in out.glob("*-*.json")}
    here = tmp_path / "here"
    embed_sources([images], here, "gated:gated", size=SHARD)
    alone = VectorFolder(here)
    np.testing.assert_array_equal(alone[:], found[found.find(list(alone.names))])


@pytest.mark.slow
def test_a_unit_that_kills_its_workers_comes_to_an_end_and_the_others_are_done(tmp_path, monkeypatch):
    pytest.importorskip("ray.data")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, str(HERE)]))
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    images, out = photographs(tmp_path / "photos", 40), tmp_path / "v"
    Image.new("RGB", (16, 16), "white").save(images / "2" / "0022.png")
    program = (
        "import sys\nfrom handful.embedders import bulk, on_ray\non_ray.RETRIES = 1\n"
        "found = bulk.embed_sources([sys.argv[1]], sys.argv[2], 'gated:deadly', size=4, ray='local', workers=1)\n"
        "print(found.images, *found.problems.values(), file=open(sys.argv[3], 'w'))\n"  # not among what Ray prints
    )
    command = [sys.executable, "-c", program, images, out, tmp_path / "found.txt"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = (tmp_path / "found.txt").read_text()
    assert "was not finished, as its workers died: run the command again" in found
    done = set(VectorFolder(tmp_path / "v").names)
    assert len(done) == int(found.split()[0]) >= 30 and "2/0022.png" not in done
