"""Images as people have them: formats, modes, rotation, and what must not be decoded."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from handful.datasets.images import BrokenImage, decode, printable


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB", size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Red grows to the right, green downwards: every corner can be told from the others."""
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    return Image.fromarray(np.stack([x, y, np.full_like(x, 60)], -1).astype(np.uint8)).convert(mode)


@pytest.mark.parametrize(("form", "tolerance"), [
    ("PNG", 0), ("BMP", 0), ("TIFF", 0), ("JPEG", 3), ("WEBP", 3), ("GIF", 5),
])  # fmt: skip
def test_every_named_format_is_read(form, tolerance):
    image = gradient(size=(32, 32))
    picture = decode(encoded(image, form), 32, 3)
    assert (picture.width, picture.height) == (32, 32)
    assert np.abs(picture.pixels.astype(int) - np.asarray(image)).mean() <= tolerance


@pytest.mark.parametrize("form", ["PPM", "ICO", "PCX", "TGA", "EPS"])
def test_no_other_format_is_read(form):
    with pytest.raises(BrokenImage, match="no image of a format that is read"):
        decode(encoded(gradient(), form), 32, 3)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_every_mode_looks_the_same(mode):
    grey = gradient("L", (32, 32)) if mode != "1" else Image.fromarray(np.eye(32, dtype=np.uint8) * 255)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    elif mode == "P":
        image = grey.convert("RGB").quantize(256)
    else:
        image = grey.convert("RGB").convert(mode) if mode in ("CMYK", "RGBA") else grey.convert(mode)
    content = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    for channels in (1, 3):
        found = decode(content, 32, channels).pixels
        assert found.shape == (32, 32, channels)
        assert np.abs(found.astype(int) - np.asarray(grey, dtype=int)[..., None]).max() <= 3


def test_sixteen_bits_of_other_files():
    levels = np.linspace(0, 65535, 32 * 32).reshape(32, 32)
    expected = np.rint(levels / 257)
    for content in (
        encoded(Image.fromarray(levels.astype(np.uint16)), "TIFF"),
        encoded(Image.fromarray(levels.astype(np.float32)), "TIFF"),
        encoded(Image.fromarray((levels / 65535).astype(np.float32)), "TIFF"),
        encoded(Image.fromarray((levels / 257).astype(np.float32)), "TIFF"),
    ):
        assert np.abs(decode(content, 32, 1).pixels[..., 0] - expected).max() <= 1
    for wrong in (levels.astype(np.float32) - 1, np.full((32, 32), np.nan, np.float32), levels.astype(np.float32) * 2):
        with pytest.raises(BrokenImage, match="pixel values"):
            decode(encoded(Image.fromarray(wrong), "TIFF"), 32, 1)


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_transparency_is_laid_on_white(mode):
    image = Image.new("RGBA", (32, 32), (200, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 16, 32))
    found = decode(encoded(image.convert(mode) if mode == "RGBA" else image.quantize(), "PNG"), 32, 3).pixels
    assert (found[:, :12] == 255).all()
    assert np.abs(found[:, 20:].astype(int) - (200, 0, 0)).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_rotation_is_undone(orientation):
    turns = {
        1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    upright = gradient(size=(640, 320))
    turn = turns[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = decode(encoded(stored, "JPEG", exif=exif, quality=95), 32, 3)
    assert (picture.width, picture.height) == (640, 320)
    expected = np.asarray(upright.resize((32, 32), Image.Resampling.LANCZOS), dtype=int)
    assert np.abs(picture.pixels.astype(int) - expected).max() <= 12


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    for form in ("GIF", "WEBP"):
        content = encoded(frames[0], form, save_all=True, append_images=frames[1:])
        assert np.abs(decode(content, 32, 3).pixels.astype(int) - (255, 0, 0)).max() <= 8


def test_large_photographs_shrink_as_they_should():
    image = gradient(size=(1500, 1000))
    found = decode(encoded(image, "JPEG", quality=95), 84, 3).pixels.astype(int)
    expected = np.asarray(image.resize((84, 84), Image.Resampling.LANCZOS), dtype=int)
    assert np.abs(found - expected).mean() < 1.5


def test_arrays_are_images_too():
    image = np.asarray(gradient(size=(32, 32)))
    assert (decode(image, 32, 3).pixels == image).all()
    assert decode(image[..., :1], 32, 1).pixels.shape == (32, 32, 1)
    assert decode(image, 16, 3).pixels.shape == (16, 16, 3)
    for wrong in (image.astype(np.float32), image[0, 0], np.empty((0, 4, 3), np.uint8), np.zeros((4, 4, 7), np.uint8)):
        with pytest.raises(BrokenImage):
            decode(wrong, 32, 3)


def test_damaged_files_say_why():
    whole = encoded(gradient(size=(200, 200)), "JPEG")
    for content, reason in (
        (b"", "empty file"),
        (whole[:500], "(?i)damaged|truncated"),
        (whole[: len(whole) // 2], "truncated"),
    ):
        with pytest.raises(BrokenImage, match=reason):
            decode(content, 32, 3)


def test_a_decompression_bomb_is_not_decoded():
    """A PNG of 100,000 x 100,000 pixels in 100 bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    with pytest.raises(BrokenImage, match=r"million|limit"):
        decode(bomb, 32, 3)


def test_names_cannot_confuse_a_terminal():
    assert printable("cat photo-1.JPEG") == "cat photo-1.JPEG"
    assert printable("a\x1b[31mb\nc\udcff").isprintable()
