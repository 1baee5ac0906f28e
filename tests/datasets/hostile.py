"""Data sets that mean harm: made by the thousand, loaded one by one, and what came of it.

    python tests/datasets/hostile.py 10000 --seed 0

A case is a folder of files, the same for the same seed. A worker process loads it as a user would, and is watched: it
may give images, or refuse in one printable sentence. Another exception, a crash, a hang, a canary file, a picture that
should not have been read, too much memory or a control character on the terminal is a failure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import hostile_cases as cases
import numpy as np
from hostile_cases import MAGENTA, Case, Files

# What a case may take: seconds of the processor, which other processes do not lengthen, and MiB above what the worker
# had before.
LIMITS = 15.0, 640
LARGE_LIMITS = 60.0, 2048  # the same for images of 119 million pixels, which is below the limit: three, one at a time

HANG = 1800.0  # seconds of the clock after which a worker that does nothing is given up

KINDS: dict[str, tuple[Callable[[Random], Case], int, tuple[float, int]]] = {  # how it is made, per cent, limits
    "image: mutated": (cases.mutated_image, 20, LIMITS),
    "image: claims a size": (cases.claimed_size, 4, LARGE_LIMITS),
    "image: real bomb": (cases.real_bomb, 1, LARGE_LIMITS),
    "image: other format": (cases.other_format, 5, LIMITS),
    "pickle: mutated": (cases.mutated_pickle, 14, LIMITS),
    "pickle: malicious": (cases.malicious_pickle, 13, LIMITS),
    "pickle: memory": (cases.memory_pickle, 4, LIMITS),
    "pickle: wrong shape": (cases.wrong_shape, 9, LIMITS),
    "npz: mutated": (cases.mutated_npz, 5, LIMITS),
    "npz: odd": (cases.odd_npz, 6, LIMITS),
    "zip: mutated": (cases.mutated_zip, 5, LIMITS),
    "zip: odd": (cases.odd_zip, 5, LIMITS),
    "zip: bomb": (cases.zip_bomb, 1, LIMITS),
    "csv": (cases.odd_table, 4, LIMITS),
    "folder": (cases.odd_folder, 3, LIMITS),
    "omniglot": (cases.odd_omniglot, 1, LIMITS),
}
FAILURES = {"canary": "canary files", "traceback": "tracebacks", "crash": "crashes", "hang": "hangs",
            "memory": "too much memory", "leak": "pictures from outside", "message": "bad messages"}  # fmt: skip


# The worker


def serve() -> None:
    """Load a case for each line of standard input, and answer with what came of it."""
    from handful.datasets import cache as caches
    from handful.datasets import files

    caches.WORKERS = files.WORKERS = 8  # whatever this machine has
    libc = ctypes.CDLL(None)
    print("ready", flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        os.environ["HANDFUL_CACHE"] = case["cache"]
        with suppress(AttributeError, OSError):  # not every system can
            libc.malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        before, started = memory("VmRSS"), time.perf_counter()
        outcome, said = load(case["dataset"], case["path"], case["check"])
        answer = outcome, said, time.perf_counter() - started, memory("VmHWM") - before
        print(json.dumps(answer), flush=True)


def load(dataset: str, path: str, check: bool) -> tuple[str, str]:
    """Load the training split, and check the whole if asked to: "loaded", "refused" or a failure, and why."""
    from handful.datasets import dataset_spec, full_options, load_dataset
    from handful.datasets.check import check_dataset
    from handful.errors import HandfulError

    options, words = full_options(dataset_spec(dataset), {"image_size": 16}), [""]
    outcome = "loaded"
    try:
        try:
            found = load_dataset(dataset, "train", path, options=options)
            pixels, words = np.array(found.images), list(found.class_names)
            assert pixels.dtype == np.uint8 and pixels.shape[:3] == (len(found.labels), 16, 16) and len(pixels)
            assert found.labels.min() >= 0 and found.labels.max() < len(words)
            if pixels.shape[3] == 3 and (pixels == MAGENTA).all((1, 2, 3)).any():
                return "leak", "a picture that lies outside was read"
        except HandfulError as error:
            outcome, words = "refused", [str(error)]
        if check:
            try:
                words += strings(check_dataset(dataset_spec(dataset), Path(path), options).to_json())
            except HandfulError as error:
                words.append(str(error))
    except BaseException:
        return "traceback", traceback.format_exc()
    bad = [word for word in words if not word.isprintable()]
    return ("message", f"not one printable line: {bad[0]!r}") if bad else (outcome, words[0])


def strings(value: Any) -> Iterator[str]:
    """All the texts inside a report."""
    if isinstance(value, str):
        yield value
    for entry in value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from strings(entry)


def memory(what: str, process: str | int = "self") -> int:
    """A process's memory in MiB, now (VmRSS) or at most (VmHWM); 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{process}/status").read_text().partition(f"{what}:")[2].split()[0]) >> 10
    except (OSError, IndexError):
        return 0


def processor(process: int) -> float:
    """Seconds of the processor that a process has had; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The runner


class Result(NamedTuple):
    """What came of a case: "loaded", "refused" or a failure, why, the seconds and MiB it took, and which it was."""

    outcome: str
    said: str
    seconds: float
    peak: int
    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.name}, {self.seconds:.1f} s, {self.peak} MiB: {self.said}"


class Worker:
    """A process that loads cases; it is started again when it has died, or has loaded so many that it may leak."""

    def __init__(self, work: Path) -> None:
        self.home, self.log, self.cases = work / "home", work / "log", 0
        self.home.mkdir()
        self.process: Any = None

    def start(self) -> None:
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve"], cwd=self.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, text=True,
            )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()
        self.cases = 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def ask(self, case: dict[str, Any], seconds: float, most: int) -> Result:
        """What came of a case: the worker's answer, or how it died."""
        if self.process is None or self.cases == 1000:
            self.stop()
            self.start()
        self.cases += 1
        worker = self.process.pid
        started, begun, base, peak = time.monotonic(), processor(worker), memory("VmRSS", worker), 0
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        while not select.select([self.process.stdout], [], [], 0.05)[0]:
            peak, taken = max(peak, memory("VmRSS", worker) - base), time.monotonic() - started
            if peak > most or processor(worker) - begun > seconds or taken > HANG:
                self.stop()
                return Result("memory" if peak > most else "hang", "", taken, peak)
        if line := self.process.stdout.readline():
            result = Result(*json.loads(line))
            return result._replace(outcome="memory") if result.peak > most else result
        self.stop()
        return Result("crash", "", time.monotonic() - started, peak)

    def traces(self) -> tuple[str, str]:
        """What it left: the names of files where it runs, and what it wrote to the terminal."""
        there = " ".join(sorted(path.name for path in self.home.iterdir()))
        told = self.log.read_bytes().decode("utf-8", "backslashreplace")
        os.truncate(self.log, 0)
        for path in self.home.iterdir():  # not the folder itself: in one that is gone, the worker could write nothing
            remove(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return there, told


def write(folder: Path, files: Files) -> str:
    """Write a case's files; gives the path to load."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content) if isinstance(content, bytes) else content(folder / name)
    return str(folder / "data.zip" if "data.zip" in files else folder)


def remove(folder: Path) -> None:
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            path.is_symlink() or path.chmod(0o700)
    shutil.rmtree(folder)


def plan(count: int) -> list[str]:
    """The kinds of so many cases, by their shares."""
    hundred = [kind for kind, (_, share, _) in KINDS.items() for _ in range(share)]
    Random(0).shuffle(hundred)
    return [hundred[number % 100] for number in range(count)]


def run(kinds: Sequence[str], seed: int, work: Path) -> list[Result]:
    """Make and load a case for each entry of ``kinds``; every third is checked as well."""
    worker, results, numbers = Worker(work), [], Counter[str]()
    try:
        for kind in kinds:
            make, _, limits = KINDS[kind]
            number, folder = numbers[kind], work / "case"
            numbers[kind] += 1
            case = make(Random(f"{seed} {kind} {number}"))
            path = write(folder / "data", case.files)
            order = {"dataset": case.dataset, "path": path, "cache": str(folder / "cache"), "check": number % 3 == 0}
            result = worker.ask(order, *limits)._replace(kind=kind, name=f"{kind} {number} ({case.note})")
            left, told = worker.traces()
            if left:
                result = result._replace(outcome="canary", said=f"wrote {left}")
            elif "Traceback" in told or not told.replace("\n", "").isprintable():
                result = result._replace(outcome="message", said=f"on the terminal: {told[:2000]!r}")
            results.append(result)
            if result.outcome in FAILURES:
                print(result, flush=True)
            remove(folder)
    finally:
        worker.stop()
    return results


def table(results: list[Result]) -> str:
    """What came of all cases, by kind."""
    lines = [f"{'kind':22}{'cases':>7}{'loaded':>8}{'refused':>9}{'failures':>10}{'slowest':>10}{'memory':>11}"]
    for kind in [*KINDS, "all"]:
        if chosen := [result for result in results if kind in (result.kind, "all")]:
            counts = Counter(result.outcome for result in chosen)
            failed = sum(counts[failure] for failure in FAILURES)
            line = f"{kind:22}{len(chosen):7,}{counts['loaded']:8,}{counts['refused']:9,}{failed:10,}"
            slowest, peak = max(result.seconds for result in chosen), max(result.peak for result in chosen)
            lines.append(f"{line}{slowest:8.1f} s{peak:+7,} MiB")
    lines.append(", ".join(f"{name}: {counts[failure]}" for failure, name in FAILURES.items()))
    return "\n".join([*lines, f"peak memory above the baseline: {peak:,} MiB"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Load hostile data sets, and say what came of it.")
    parser.add_argument("cases", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), help="only cases of this kind")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.serve:
        serve()
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        kinds = [settings.kind] * settings.cases if settings.kind else plan(settings.cases)
        results = run(kinds, settings.seed, Path(work))
    print(f"{table(results)}; {time.monotonic() - started:,.0f} s in all")
    return int(any(result.outcome in FAILURES for result in results))


if __name__ == "__main__":
    sys.exit(main())
