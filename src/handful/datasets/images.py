"""From an image file's bytes, which may be hostile, to pixels of one size.

Only the formats named here are opened; nothing larger than the limits is decoded. Pillow's JPEG decoder is asked for
about twice the wanted size, which is much faster for photographs from a camera.
"""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ..terminal import printable as printable
from .base import Payload

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
MOST_PIXELS = 120_000_000  # the largest phone cameras have 108 million; decoded, that is up to 1.8 gigabytes
MOST_BYTES = 256 << 20  # of one file
MOST_SCANS = 64  # of a JPEG file, progressive ones usually have 10; each goes over all pixels, and can be a few bytes
LARGE = 1 << 24  # pixels; each takes up to 13 bytes of memory, so of larger images only one is decoded at a time
_ALONE = threading.Lock()
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_WIDE_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


class BrokenImage(Exception):  # noqa: N818 - reads better
    """An image that cannot be read; the message says why, without its name."""


@dataclass(frozen=True)
class Picture:
    """A decoded image.

    Attributes:
        pixels: (size, size, channels) uint8.
        width, height: of the original, after the camera's rotation was undone.
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int


def decode(payload: Payload, size: int, channels: int, *, crop: bool = False) -> Picture:
    """Pixels (size, size, channels) of an image file or of an array.

    The shape is stretched to a square, or, with ``crop``, the largest square in its middle is taken.
    Rotation by EXIF is undone, transparency is laid on white, 16-bit and float images are scaled to 8 bits, and of an
    animation the first frame is taken.

    Raises:
        BrokenImage: if it cannot be decoded, for whatever reason.
    """
    try:
        image, full, held = _open_array(payload) if isinstance(payload, np.ndarray) else _open_file(payload, size)
        drafted = image.size
        with _ALONE if held > LARGE else nullcontext():
            if not isinstance(payload, np.ndarray):
                image.load()
                with suppress(Exception):  # the picture is sound even if its EXIF data are not
                    ImageOps.exif_transpose(image, in_place=True)
            width, height = full if image.size == drafted else full[::-1]
            image = _plain(image, "L" if channels == 1 else "RGB")
            if image.size != (size, size):  # large ones first by whole factors, which is faster and looks the same
                box = _middle(*image.size) if crop else None
                image = image.resize((size, size), Image.Resampling.LANCZOS, box, reducing_gap=3)
            pixels = np.asarray(image, dtype=np.uint8).reshape(size, size, channels)
    except BrokenImage:
        raise
    except MemoryError:
        raise BrokenImage("does not fit into memory") from None
    except Exception as error:  # decoders of hostile bytes raise nearly everything there is
        raise BrokenImage(printable(str(error)) or type(error).__name__) from error
    return Picture(pixels, width, height)


def within(content: bytes, longest: int) -> Image.Image:
    """An image file as RGB, its longer side at most ``longest`` pixels, in its own shape; as :func:`decode` otherwise.

    Raises:
        BrokenImage: if it cannot be decoded, for whatever reason.
    """
    try:
        image, _, held = _open_file(content, longest)
        with _ALONE if held > LARGE else nullcontext():
            image.load()
            with suppress(Exception):
                ImageOps.exif_transpose(image, in_place=True)
            image = _plain(image, "RGB")
            image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=3)
        return image
    except BrokenImage:
        raise
    except MemoryError:
        raise BrokenImage("does not fit into memory") from None
    except Exception as error:
        raise BrokenImage(printable(str(error)) or type(error).__name__) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No word from Pillow about odd metadata. Around a whole pass, not per image: warnings know no threads."""
    block = Image.core.get_block_size()  # type: ignore[attr-defined]
    # Freed blocks of up to 32 MiB may stay with the thread that used them; those of Pillow, 16 MiB, would add up.
    Image.core.set_block_size(1 << 26)  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.core.set_block_size(block)  # type: ignore[attr-defined]


def _middle(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle of an image: left, top, right, bottom.

    >>> _middle(400, 300)
    (50.0, 0.0, 350.0, 300.0)
    """
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def opened(content: bytes, size: int) -> Image.Image:
    """An image file, checked and not yet decoded; of a JPEG, about twice the wanted size will be."""
    return _open_file(content, size)[0]


def _open_file(content: bytes, size: int) -> tuple[Image.Image, tuple[int, int], int]:
    """The image, to be decoded, perhaps at a fraction of its size; that size; the pixels that decoding will hold."""
    if not content:
        raise BrokenImage("empty file")
    if len(content) > MOST_BYTES:
        raise BrokenImage(f"more than {MOST_BYTES >> 20} MiB")
    try:
        image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise BrokenImage(f"no image of a format that is read ({', '.join(FORMATS)}), or damaged") from None
    full = image.size
    if full[0] * full[1] > MOST_PIXELS:
        raise BrokenImage(f"{full[0]} x {full[1]} pixels, more than {MOST_PIXELS // 10**6} million")
    scans = _scans(content) if image.format in ("JPEG", "MPO") else 1
    if scans > MOST_SCANS:
        raise BrokenImage(f"a JPEG file of more than {MOST_SCANS} scans")
    image.draft(None, (2 * size, 2 * size))  # only JPEG knows drafts
    return image, full, math.prod(image.size if scans == 1 else full)


def _scans(content: bytes) -> int:
    """How often a JPEG file goes over its pixels, as far as the limit."""
    scans, at = 0, 2
    while scans <= MOST_SCANS and (found := _MARKER.search(content, at)):
        marker, at = found[1][0], found.end()
        if marker == 0xD9:  # the end
            break
        scans += marker == 0xDA
        at += int.from_bytes(content[at : at + 2], "big")  # the length of what follows, which may look like markers
    return scans


def _open_array(pixels: NDArray[Any]) -> tuple[Image.Image, tuple[int, int], int]:
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise BrokenImage(f"not pixels of an image: {pixels.dtype} of shape {pixels.shape}")
    if pixels.shape[0] * pixels.shape[1] > MOST_PIXELS:
        raise BrokenImage(f"{pixels.shape[1]} x {pixels.shape[0]} pixels, more than {MOST_PIXELS // 10**6} million")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim == 3 and pixels.shape[2] not in (3, 4):
        raise BrokenImage(f"{pixels.shape[2]} channels instead of 1, 3 or 4")
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image, image.size, math.prod(image.size)


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Grey (L) or RGB, 8 bits, opaque."""
    if image.mode in _WIDE_MODES:
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image.getchannel("A"))
        image = paper
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Integers are read as 16-bit, floats as from 0 to 1, to 255 or to 65,535, whichever they fit into."""
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 65535):  # false for NaN as well
        raise BrokenImage(f"pixel values from {low} to {high}, which are not of 8 or 16 bits")
    whole = values.dtype.kind in "iu"
    top = 65535 if whole or high > 255 else 255 if high > 1 else 1
    scaled = values.astype(np.float32)  # in place from here on: there may be a hundred million of them
    scaled *= 255 / top
    return np.rint(scaled, out=scaled).astype(np.uint8)
