"""``transformers:FOLDER``: a vision model in the layout of Hugging Face, read from a folder on this machine.

Nothing is downloaded and nothing in the folder is executed: weights come from safetensors files only, the network is
one of the package ``transformers``, and settings that would make it fetch code are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.images import printable
from ..errors import HandfulError
from ..io import read_object
from .base import MOST_SIZE, reason
from .external import imported, normalised
from .networks import Network

SETTINGS, IMAGES = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # in one file, or in several
IMPLEMENTATIONS = (
    None,
    "eager",
    "sdpa",
)  # of attention; any other name is that of code to fetch, or of another package
MOST_LAYERS = 1000  # more is damage, and would take hours to build
CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")


class _Preparation(NamedTuple):
    """What is done to pixels from 0 to 255: (scale * pixels - mean) / std, blue before red if flipped."""

    size: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flipped: bool

    def function(self) -> Callable[[Tensor], Tensor]:
        normalise = normalised(self.mean, self.std, self.scale)
        return (lambda images: normalise(images.flip(-1))) if self.flipped else normalise


class _Pooled(nn.Module):
    """A model of transformers as a network: pixels (n, 3, size, size) -> vectors (n, dim)."""

    def __init__(self, model: nn.Module, use_pooler: bool) -> None:
        super().__init__()
        self.model, self.use_pooler = model, use_pooler
        self.has_class_token = any(name.endswith(CLASS_TOKENS) for name, _ in model.named_parameters())

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.model(pixel_values=pixels, return_dict=True)
        pooled: Tensor | None = getattr(found, "pooler_output", None)
        if self.use_pooler and pooled is not None:
            return pooled.flatten(1)  # of convolutional networks (n, dim, 1, 1)
        states: Tensor = found.last_hidden_state
        if states.ndim == 4:
            return states.mean((2, 3))
        return states[:, 0] if self.has_class_token else states.mean(1)


def from_transformers(folder: str, device: str) -> Network:
    """``transformers:FOLDER``: the vector is the model's ``pooler_output``.

    If the folder has no weights for the pooler, as classifiers have none, or the model has no pooler, it is the class
    token of the last layer; without such a token, the mean over tokens or over the feature map.
    """
    package, name, path = imported("transformers"), printable(f"transformers:{folder}"), Path(folder)
    _check_files(path, folder)
    settings = read_object(path / SETTINGS)
    _check_settings(settings, path / SETTINGS)
    preparation = _preparation(path / IMAGES)
    try:
        with _silent(package):
            model, loading = package.AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # an unknown kind of model, other shapes than in the settings, a damaged file, ...
        raise HandfulError(f"transformers cannot load the model in {printable(folder)}: {reason(error)}") from error
    network = _vision(model, set(loading["missing_keys"]), name)
    about = f"{hashlib.sha256((path / SETTINGS).read_bytes()).hexdigest()[:16]}-{preparation}"
    try:
        embedder = Network(name, network, preparation.size, 3, preparation.function(), device, prepared=about)
        probe = np.random.default_rng(0).integers(0, 256, (1, preparation.size, preparation.size, 3), dtype=np.uint8)
        first, second = embedder.embed(probe), embedder.embed(probe)
    except Exception as error:  # it takes images of another size, several of them, a text, ...
        raise HandfulError(f"the embedder {name} fails: {reason(error)}") from error
    if not np.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise HandfulError(f"{name} gives another vector whenever it sees the same image: choose another model")
    return embedder


def _vision(model: Any, missing: set[str], name: str) -> _Pooled:
    """The part of a model that sees images, in float32, with all of its weights; those of a pooler may be missing."""
    tower, prefix = model, ""
    if model.main_input_name != "pixel_values":  # of images and text, as CLIP
        tower, prefix = getattr(model, "vision_model", None), "vision_model."
        if tower is None:
            raise HandfulError(f"{name} is a {type(model).__name__}, which takes {model.main_input_name}: not images")
    own = {key.removeprefix(prefix) for key in missing if key.startswith(prefix)}
    if lacking := sorted(key for key in own if "pooler" not in key.split(".")):
        raise HandfulError(f"the weights of {name} are incomplete: they lack {printable(lacking[0])}")
    with torch.no_grad():
        for key, value in tower.named_parameters():
            if key in own:
                value.zero_()  # not used, and random: the same weights should always have the same digest
    return _Pooled(tower.float(), use_pooler=not own)


def _check_files(path: Path, folder: str) -> None:
    try:
        there = {one.name for one in path.iterdir()} if folder else set()
    except (OSError, ValueError) as error:
        raise HandfulError(
            f"there is no model folder at {printable(folder)}: transformers: reads a folder on this machine and "
            "downloads nothing"
        ) from error
    for wanted in (SETTINGS, IMAGES):
        if wanted not in there:
            raise HandfulError(f"transformers: needs a folder with {wanted}, which '{printable(folder)}' has not")
    if not there & set(WEIGHTS):
        raise HandfulError(
            f"{printable(folder)} has no {WEIGHTS[0]}: only such weights are read, as loading pytorch_model.bin can "
            "execute code; save the model as safetensors"
        )


def _check_settings(settings: dict[str, Any], path: Path) -> None:
    """Refuse settings that make transformers fetch code, need other packages, or are of no network that there is."""
    waiting = [settings]
    while waiting:
        for key, value in waiting.pop().items():
            if "_implementation" in key and isinstance(value, str | dict) and value not in IMPLEMENTATIONS:
                raise HandfulError(f"{path} asks for {key} {str(value)[:60]!r}: only eager and sdpa will do")
            if key == "quantization_config" and value:
                raise HandfulError(f"{path} is of quantised weights: only plain ones can be read")
            if ("layers" in key or "depth" in key) and any(
                isinstance(one, int) and one > MOST_LAYERS for one in (value if isinstance(value, list) else [value])
            ):
                raise HandfulError(f"{path} is damaged: {key} is more than {MOST_LAYERS}")
            if isinstance(value, dict):
                waiting.append(value)


def _preparation(path: Path) -> _Preparation:
    content = read_object(path)
    crops = content.get("do_center_crop") and content.get("crop_size") is not None
    size = _side(content.get("crop_size" if crops else "size"))
    if size is None or not 1 <= size <= MOST_SIZE:
        raise HandfulError(f"{path} should say the size of square images, from 1 to {MOST_SIZE}")
    normalises = content.get("do_normalize", True)
    mean = _three(content.get("image_mean")) if normalises else (0.0,) * 3
    std = _three(content.get("image_std")) if normalises else (1.0,) * 3
    scale = content.get("rescale_factor", 1 / 255) if content.get("do_rescale", True) else 1.0
    if mean is None or std is None or not all(std) or not _is_number(scale):
        raise HandfulError(f"{path} should give image_mean and image_std, three numbers each, and rescale_factor")
    return _Preparation(size, scale, mean, std, bool(content.get("do_flip_channel_order", False)))


def _side(size: Any) -> int | None:
    """The side of square images from a number, from height and width, or from the shortest edge."""
    if isinstance(size, dict):
        height, width = (size.get(side, size.get("shortest_edge")) for side in ("height", "width"))
        size = height if height == width else None
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _three(values: Any) -> tuple[float, ...] | None:
    return tuple(values) if isinstance(values, list) and len(values) == 3 and all(map(_is_number, values)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextmanager
def _silent(package: Any) -> Iterator[None]:
    """Without the progress bar of transformers and its report of unused weights, which tell a user of ours nothing."""
    logging = package.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
