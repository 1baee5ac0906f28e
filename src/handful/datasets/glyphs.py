"""A data set without files: letters of many scripts, drawn with the fonts that matplotlib installs.

A class is one letter, an image that letter in a random face, weight, size, slant, place and light, with clutter and
noise. Training, validation and test classes come from different scripts, as tieredImageNet keeps categories apart.
The letters stand in ``glyphs.txt``, one line per script; `choose_letters` says how they were chosen.
"""

from __future__ import annotations

import functools
import hashlib
import string
import sys
import unicodedata
from pathlib import Path

import numpy as np
import PIL
from fontTools import unicodedata as script_data
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps
from rich.console import Console
from rich.progress import track
from scipy import ndimage

from ..errors import HandfulError
from .base import DatasetSpec, ImageSet
from .cache import cache_root, write_cache

SPLIT_SCRIPTS: dict[str, tuple[str, ...]] = {
    "train": ("Latin", "Greek", "Cyrillic", "Coptic", "Old Italic", "Canadian Aboriginal"),
    "val": ("Georgian",),
    "test": ("Armenian", "Hebrew", "Arabic", "Lao"),
}
IMAGES_PER_CLASS = 100
SIZE = 28
SEED = 20190
RECIPE = 2  # part of the cache's name: raise it with every change to what is drawn
MIN_FACES = 4  # a letter that fewer faces draw is not used
_CANVAS = 2 * SIZE  # letters are drawn at twice the size, then averaged
_Range = tuple[float, float]
_font = functools.cache(ImageFont.truetype)


def _fonts() -> Path:
    import matplotlib  # takes a while, and a list of the data sets has no need of it

    return Path(matplotlib.get_data_path(), "fonts", "ttf")


@functools.cache
def faces() -> dict[Path, frozenset[str]]:
    """The font files, sorted by name, each with the characters that it has."""
    # Not the others: they put placeholders (LastResort), symbols or TeX's own encoding (cm*) under letters' codes.
    patterns = ("DejaVuSans*.ttf", "DejaVuSerif*.ttf", "STIXGeneral*.ttf")
    files = sorted(file for pattern in patterns for file in _fonts().glob(pattern) if "Display" not in file.name)
    tables = {file: TTFont(file, lazy=True).getBestCmap() for file in files}
    return {file: frozenset(chr(c) for c, glyph in tables[file].items() if glyph != ".notdef") for file in files}


def drawn_by(letter: str) -> list[Path]:
    """The faces that have the letter and put ink on the page for it."""
    return [file for file, has in faces().items() if letter in has and _stencil(letter, file).getbbox()]


@functools.lru_cache(maxsize=8192)
def _stencil(letter: str, file: Path, weight: int = 0) -> Image.Image:
    """The letter, white on black with a margin, its strokes as they are (0) or thicker (1, 2)."""
    font = _font(file, 64, layout_engine=ImageFont.Layout.BASIC)  # Raqm, the other engine, is not everywhere
    left, top, right, bottom = map(int, font.getbbox(letter))
    page = Image.new("L", (right - left + 12, bottom - top + 12))
    ImageDraw.Draw(page).text((6 - left, 6 - top), letter, fill=255, font=font)
    return page.filter(ImageFilter.MaxFilter(2 * weight + 1))


@functools.cache
def letters() -> dict[str, str]:
    """The chosen letters of each script, as ``glyphs.txt`` lists them."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def choose_letters() -> dict[str, str]:
    """Choose the letters anew from the fonts: this is how ``glyphs.txt`` was made.

    Kept are plain letters that at least four faces draw and that look like no letter kept before: of the same split,
    or, by a more lenient measure, of another split.
    """
    chosen = {script: "" for members in SPLIT_SCRIPTS.values() for script in members}
    kept: list[tuple[str, str]] = []  # (split, lower case) of each letter chosen so far
    looks = np.empty((0, len(faces()), 32 * 32), dtype=np.float32)  # and its look
    candidates = sorted(next(has for file, has in faces().items() if file.stem == "DejaVuSans"))  # all can be compared
    for split in ("test", "val", "train"):  # the largest last, as the later ones lose their look-alikes
        for script in SPLIT_SCRIPTS[split]:
            for letter in candidates:
                if not _is_plain(letter, script) or len(drawn_by(letter)) < MIN_FACES:
                    continue
                look = _look(letter)
                by_face = np.einsum("kfd,fd->kf", looks, look)  # correlation in each face, 0 where one lacks the letter
                mean = by_face.sum(1) / np.maximum(1, (by_face != 0).sum(1))
                # Sizes vary, so c and C are one shape: a capital must differ clearly from its small letter. Italics
                # can make twins of letters that are distinct upright: hence the limit on the most alike face.
                mean_limit = [(0.7 if low == letter.lower() else 0.86) if s == split else 0.93 for s, low in kept]
                face_limit = [0.96 if s == split else 1.0 for s, _ in kept]
                if not ((mean > mean_limit) | (by_face.max(1, initial=0) > face_limit)).any():
                    chosen[script] += letter
                    kept.append((split, letter.lower()))
                    looks = np.concatenate([looks, look[None]])
    return chosen


def _is_plain(letter: str, script: str) -> bool:
    return (
        unicodedata.category(letter) in ("Lu", "Ll", "Lo")
        and script_data.script_name(script_data.script(letter)) == script
        and not unicodedata.decomposition(letter)
        and not any(word in unicodedata.name(letter) for word in (" WITH ", "LIGATURE", "FRAGMENT", "HIGH"))
    )


def _look(letter: str) -> NDArray[np.float32]:
    """The letter's shape in each face, of mean 0 and norm 1: (faces, 32 * 32), 0 where a face lacks it.

    Size and place do not count, nor do dots: parts with less than a quarter of the largest part's ink are left out.
    """
    shapes = np.zeros((len(faces()), 32 * 32), dtype=np.float32)
    for row, (file, has) in enumerate(faces().items()):
        if letter in has:
            ink = np.asarray(_stencil(letter, file))
            parts, count = ndimage.label(ink > 64, np.ones((3, 3)))
            weights = np.append(0, ndimage.sum_labels(ink, parts, np.arange(1, count + 1)))  # part 0 is the paper
            body = Image.fromarray(ink * (weights >= weights.max() / 4)[parts])
            body = body.crop(body.getbbox())
            # Halfway to a square (on a log scale), for the images stretch letters too.
            width, height = (max(1, round(24 * (side / max(body.size)) ** 0.5)) for side in body.size)
            body = ImageOps.pad(body.resize((width, height)), (24, 24))
            shape = ndimage.gaussian_filter(np.pad(np.asarray(body, dtype=np.float32), 4), 1.6).ravel()
            shapes[row] = (shape - shape.mean()) / (shape.std() * 32)
    return shapes


def draw(letter: str) -> NDArray[np.uint8]:
    """All images of one class: (IMAGES_PER_CLASS, SIZE, SIZE). The other classes play no part in them."""
    files = drawn_by(letter)
    if len(files) < MIN_FACES:
        raise HandfulError(f"too few of matplotlib's fonts in {_fonts()} can draw '{letter}': reinstall matplotlib")
    rng, n = np.random.default_rng([SEED, ord(letter)]), IMAGES_PER_CLASS
    pages = np.empty((n, SIZE, SIZE), dtype=np.uint8)
    for i, place in enumerate(_places(rng, n, size=(0.45, 0.85), distance=(0, 0.12), turn=np.pi / 12)):
        page = Image.new("L", (_CANVAS, _CANVAS))
        _stamp(page, _stencil(letter, files[rng.integers(len(files))], int(rng.integers(3))), place, 255)
        pages[i] = np.asarray(page.reduce(2))
    ink = np.maximum(pages, _clutter()[rng.choice(len(_clutter()), n, replace=False)]) / 255
    low, high = (0, 0.8, -0.2, -0.2, 0.45, 0.03), (1, 1, 0.2, 0.2, 0.9, 0.18)
    focus, light, across, down, contrast, noise = rng.uniform(low, high, (n, 6)).T[..., None, None]  # (n, 1, 1) each
    ink += focus * (ndimage.gaussian_filter(ink, (0, 1.2, 1.2)) - ink)
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5
    grey = light + across * x + down * y - contrast * ink + noise * rng.standard_normal(ink.shape)
    return np.asarray(255 * grey.clip(0, 1), dtype=np.uint8)


@functools.cache
def _clutter(n: int = 2000) -> NDArray[np.uint8]:
    """Pages to lay over the letters: (n, SIZE, SIZE), with strokes, blots and other letters that the border cuts."""
    rng = np.random.default_rng(SEED)
    files = list(faces())
    places = _places(rng, 3 * n, size=(0.3, 0.7), distance=(0.4, 0.65), turn=np.pi).reshape(n, 3, 4, 2)
    pages = np.empty((n, SIZE, SIZE), dtype=np.uint8)
    for i in range(n):
        page = Image.new("L", (_CANVAS, _CANVAS))
        pen = ImageDraw.Draw(page)
        for place in places[i, : rng.integers(1, 4)]:
            letter, file = string.ascii_letters[rng.integers(52)], files[rng.integers(len(files))]
            _stamp(page, _stencil(letter, file), place, int(rng.integers(100, 256)))
        for ends in rng.uniform(0, _CANVAS, (rng.integers(3), 4)):
            pen.line(ends.tolist(), fill=int(rng.integers(60, 200)), width=int(rng.integers(1, 4)))
        for x, y, width, height in rng.uniform((0, 0, 3, 3), (_CANVAS, _CANVAS, 10, 10), (rng.integers(3), 4)):
            pen.ellipse((x, y, x + width, y + height), fill=int(rng.integers(60, 200)))
        pages[i] = np.asarray(page.reduce(2))
    return pages


def _places(rng: np.random.Generator, n: int, size: _Range, distance: _Range, turn: float) -> NDArray[np.float64]:
    """Where the page's corners fall on a stencil that is turned, slanted, stretched and warped at random: (n, 4, 2).

    The unit is the stencil's longer side, ``size`` of the page; the origin its centre, ``distance`` off the page's.
    """
    away, towards = rng.uniform(*distance, (n, 1)), rng.uniform(0, 2 * np.pi, (n, 1))
    x = np.array((-0.5, -0.5, 0.5, 0.5)) - away * np.cos(towards)  # (n, 4), the corners in the order that QUAD wants
    y = np.array((-0.5, 0.5, 0.5, -0.5)) - away * np.sin(towards)
    angle, slant, stretch = rng.uniform((-turn, -0.35, -0.2), (turn, 0.35, 0.2), (n, 3)).T[..., None]
    x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    corners = np.stack(((x + slant * y) * np.exp(stretch), y * np.exp(-stretch)), axis=-1)
    return np.asarray(corners / rng.uniform(*size, (n, 1, 1)) + rng.uniform(-0.16, 0.16, (n, 4, 2)))


def _stamp(page: Image.Image, stencil: Image.Image, place: NDArray[np.float64], level: int) -> None:
    quad = np.array(stencil.size) / 2 + max(stencil.size) * place
    ink = stencil.transform(page.size, Image.Transform.QUAD, quad.ravel().tolist(), Image.Resampling.BILINEAR)
    page.paste(level, mask=ink)


def load(split: str) -> ImageSet:
    """One split, drawn at the first call (some seconds), then read from the cache."""
    classes = sorted(letter for script in SPLIT_SCRIPTS[split] for letter in letters()[script])
    shape = (len(classes) * IMAGES_PER_CLASS, SIZE, SIZE, 1)
    cache = cache_root() / _cache_name(split)
    images = _read(cache, shape)
    if images is None:
        silent = not sys.stderr.isatty()
        bar = track(classes, f"drawing glyphs ({split})", console=Console(stderr=True), transient=True, disable=silent)
        images = np.stack([draw(letter) for letter in bar]).reshape(shape)
        write_cache(cache, hashlib.sha256(images.data).digest() + images.tobytes())
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), IMAGES_PER_CLASS)
    return ImageSet("glyphs", split, images, labels, tuple(unicodedata.name(letter) for letter in classes))


def _cache_name(split: str) -> str:
    """Other fonts, letters or drawing libraries make other images, hence another name."""
    import matplotlib  # as above

    digest = hashlib.sha256(repr((letters(), matplotlib.__version__, PIL.__version__, np.__version__)).encode())
    for file in faces():
        digest.update(file.name.encode() + file.read_bytes())
    return f"glyphs-{split}-v{RECIPE}-{digest.hexdigest()[:12]}.bin"


def _read(cache: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The cached images, or None if there are none or they do not fit the checksum that leads the file."""
    try:
        data = np.fromfile(cache, dtype=np.uint8)
    except OSError:
        return None
    sound = data.size == 32 + np.prod(shape) and hashlib.sha256(data[32:].data).digest() == data[:32].tobytes()
    return data[32:].reshape(shape) if sound else None


_SUMMARY = "letters of 11 scripts, 28 x 28 grey: 410 classes (247 / 68 / 95) of 100 images, drawn on first use"
SPEC = DatasetSpec("glyphs", _SUMMARY, labelled_ratio=0.4, channels=1, draw=load)
