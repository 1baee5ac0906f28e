"""The same images in all layouts that are read: a folder, a zip, tar shards, Parquet and Arrow files."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def images(count: int, seed: int = 0) -> dict[str, bytes]:
    """Names and contents of small images; their names sort as they are numbered."""
    rng, found = np.random.default_rng(seed), {}
    for number in range(count):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(buffer, "PNG")
        found[f"{'ab'[number % 2]}/{number:04d}.png"] = buffer.getvalue()
    return dict(sorted(found.items()))


def folder(path: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def zipped(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, content: dict[str, bytes], mode: str = "w") -> Path:
    """As WebDataset lays it out: what belongs to an image goes by its name, and follows it."""
    with tarfile.open(path, mode) as archive:
        for name, data in content.items():
            for entry, inside in ((name, data), (f"{name.rpartition('.')[0]}.cls", b"1")):
                member = tarfile.TarInfo(entry)
                member.size = len(inside)
                archive.addfile(member, io.BytesIO(inside))
    return path


def table(content: dict[str, bytes]):
    import pyarrow as pa

    rows = [{"bytes": data, "path": name} for name, data in content.items()]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array(rows, kind), "label": pa.array([0] * len(rows))})


def parquet(path: Path, content: dict[str, bytes], group: int = 10, compression: str = "snappy") -> Path:
    import pyarrow.parquet as pq

    pq.write_table(table(content), path, row_group_size=group, compression=compression)
    return path


def arrow(path: Path, content: dict[str, bytes], *, stream: bool) -> Path:
    import pyarrow as pa

    found = table(content)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, found.schema) as writer:
        writer.write_table(found, max_chunksize=10)
    return path


def halves(content: dict[str, bytes]) -> list[dict[str, bytes]]:
    entries = list(content.items())
    return [dict(entries[: len(entries) // 2]), dict(entries[len(entries) // 2 :])]
