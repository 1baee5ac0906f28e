"""All methods on glyphs, 5-way 1-shot, with and without distractors: the table of docs/results.md.

Every model gets the same budget. Semi-supervised methods are trained once without distractors and once with, and are
evaluated as they were trained; methods that use labelled images only in training are trained once. Finished runs in the
output folder are used again, so the script can be stopped and started.

    python benchmarks/glyphs_table.py --out runs/glyphs
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

EPISODES = 500
COMMON = ["--dataset", "glyphs", "--shots", "1", "--ways", "20", "--queries", "5", "--unlabelled", "5",
          "--episodes", str(EPISODES), "--learning-rate", "0.003", "--validate-every", "100"]  # fmt: skip
# On validation classes PN learns far faster at 0.1 than at 1; for TapNet it makes no difference: the paper's 1.
PN, TAPNET = ["--set", "scale=0.1"], ["--set", "scale=1.0"]

# Row of the table: (method of the training, its options, method of the evaluation, trained with distractors as well)
ROWS: dict[str, tuple[str, list[str], str, bool]] = {
    "PN": ("pn", PN, "pn", False),
    "Soft k-Means": ("soft-kmeans", PN, "soft-kmeans", True),
    "Soft k-Means + Cluster": ("soft-kmeans-cluster", PN, "soft-kmeans-cluster", True),
    "Masked Soft k-Means": ("masked-soft-kmeans", PN, "masked-soft-kmeans", True),
    "PN + Semi-Sup. Inference": ("pn", PN, "soft-kmeans", False),
    "TPN": ("tpn", [], "tpn", True),
    "RN": ("relation", [], "relation", False),
    "MetaGAN + RN": ("metagan", [], "metagan", True),
    "IMP": ("imp", [], "imp", True),
    "TapNet": ("tapnet", TAPNET, "tapnet", False),
    "TapNet + Semi-Sup. Inference": ("tapnet", TAPNET, "tapnet-semi", False),
    "TapNet + Soft-clustering": ("tapnet-soft-clustering", TAPNET, "tapnet-soft-clustering", True),
    "TAC": ("tac", TAPNET, "tac", True),
    "TACdap": ("tacdap", TAPNET, "tacdap", True),
    "TapNet, M constant in the backward pass": (
        "tapnet", [*TAPNET, "--set", "grad_through_projection=false"], "tapnet", False,
    ),
    "TAC, gradient through the soft labels": (
        "tac", [*TAPNET, "--set", "grad_through_soft_labels=true"], "tac", False,
    ),
}  # fmt: skip


LOCKS: defaultdict[Path, Lock] = defaultdict(Lock)


def tacit(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one process per core beats one process on all
    command = [sys.executable, "-m", "tacit", *arguments]
    return subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def cell(out: Path, row: str, distractors: bool, splits: int, episodes: int) -> str:
    method, options, evaluated_as, trained_twice = ROWS[row]
    folder = out / "-".join([method, *options[1::2][1:], *(["distractors"] if distractors and trained_twice else [])])
    extra = ["--distractors"] if distractors and trained_twice else []
    with LOCKS[folder]:  # several rows may want the same model
        tacit("train", "--method", method, *COMMON, *options, *extra, "--out", str(folder), "--resume")
    result = json.loads(
        tacit("evaluate", str(folder), "--method", evaluated_as, "--splits", str(splits), "--episodes", str(episodes),
              "--json", *(["--distractors"] if distractors else []))
    )  # fmt: skip
    refinements = f" ({result['iterations']})" if result["iterations"] else ""
    print(f"{row}, distractors {distractors}: {result['mean']:.2f}", file=sys.stderr, flush=True)
    return f"{result['mean']:.2f} ± {result['interval']:.2f}{refinements}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=3000, help="test episodes per split")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.processes) as pool:
        jobs = {
            (row, distractors): pool.submit(cell, options.out, row, distractors, options.splits, options.episodes)
            for distractors in (False, True)
            for row, (_, _, _, trained_twice) in ROWS.items()
            if not distractors or trained_twice or "," not in row
        }
    print("| method | without distractors | with distractors |\n|---|---|---|")
    for row in ROWS:
        cells = [jobs[row, d].result() if (row, d) in jobs else "-" for d in (False, True)]
        print(f"| {row} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
