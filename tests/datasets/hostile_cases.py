"""Makes the data sets of `hostile.py`: damaged ones, odd ones, and such as mean harm."""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from struct import pack
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

MAGENTA = (255, 0, 255)  # the colour of pictures that lie where nothing should be read

Content = bytes | Callable[[Path], object]  # of a file, or what makes it
Files = dict[str, Content]
Member = tuple[str | zipfile.ZipInfo, bytes]


class Case(NamedTuple):
    """A data set's name, its files (if one is ``data.zip``, that is what is loaded) and what is wrong with them."""

    dataset: str
    files: Files
    note: str


# Images


def encode(image: Image.Image, form: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **settings)
    return buffer.getvalue()


FINE, OUTSIDE = (encode(Image.new("RGB", (8, 8), colour), "PNG") for colour in ("teal", MAGENTA))
FORMS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP", "tif": "TIFF", "gif": "GIF"}
MODES = {"jpg": "RGB L CMYK", "png": "RGB RGBA P L 1 LA I;16", "webp": "RGB RGBA", "bmp": "RGB RGBA P L 1",
         "tif": "RGB RGBA CMYK P 1 F I;16", "gif": "P L"}  # fmt: skip
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "jpg": [{"progressive": True}],
    "webp": [{"lossless": True}, {"save_all": True}],
    "tif": [{"compression": way} for way in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")],
    "gif": [{"interlace": 1}, {"save_all": True}, {"transparency": 3}],
}


@cache
def samples(kind: str) -> list[bytes]:
    """Sound images of a format in its modes and compressions, with EXIF data where it can."""
    first, second = map(Image.fromarray, np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3), dtype=np.uint8))
    extra: dict[str, Any] = {"exif": Image.Exif()} if kind in ("jpg", "png", "webp") else {}
    for exif in extra.values():
        exif[0x0112] = 6  # the camera was turned
    made = [encode(first.convert("L").convert(mode), FORMS[kind], **extra) for mode in MODES[kind].split()]
    for settings in SETTINGS.get(kind, []):
        more = {"append_images": [second]} if "save_all" in settings else {}
        made.append(encode(first, FORMS[kind], **extra, **settings, **more))
    return made


def mutate(rng: Random, data: bytes) -> bytes:
    """The same bytes cut short, flipped, overwritten, inserted, removed or repeated, anywhere or near the start."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, size = rng.randrange(len(content) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        at = at % 64 if rng.random() < 0.4 else at
        if at < len(content) and rng.random() < 0.2:
            content[at] ^= 1 << rng.randrange(8)
            continue
        extreme = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * size
        end = rng.choice((at, at + size, at + size, at + size, len(content)))
        content[at:end] = rng.choice((b"", rng.randbytes(size), extreme, bytes(content[at : at + size])))
    return bytes(content)


def among_fine(name: str, content: Content) -> Files:
    return {"train/a/fine.png": FINE, "train/b/fine.png": FINE, name: content}


def mutated_image(rng: Random) -> Case:
    kind = rng.choice(list(FORMS))
    return Case("folder", among_fine(f"train/a/x.{kind}", mutate(rng, rng.choice(samples(kind)))), kind)


def claim(kind: str, data: bytes, width: int, height: int) -> bytes:
    """An image whose header gives another size than it has."""
    w, h = width & 0xFFFF, height & 0xFFFF
    if kind == "jpg":
        return re.sub(rb"(?s)(\xff[\xc0\xc2]\0.\x08)....", lambda found: found[1] + pack(">HH", h, w), data)
    if kind == "tif":
        for tag, side in ((b"\0\1", width), (b"\1\1", height)):
            found = re.search(b"(?s)" + tag + b"[\3\4]\0\1\0\0\0....", data)
            data = data.replace(found[0], tag + pack("<HII", 4, 1, side)) if found else data
        return data
    new = {
        "png": (16, pack(">II", width, height)),
        "bmp": (18, pack("<II", width, height)),
        "gif": (6, pack("<HH", w, h)),
        "VP8 ": (26, pack("<HH", w & 0x3FFF, h & 0x3FFF)),
        "VP8L": (21, pack("<I", (w - 1 & 0x3FFF) | (h - 1 & 0x3FFF) << 14)),
        "VP8X": (24, pack("<I", width - 1 & 0xFFFFFF)[:3] + pack("<I", height - 1 & 0xFFFFFF)[:3]),
    }
    at, sides = new[kind if kind != "webp" else data[12:16].decode()]
    data = data[:at] + sides + data[at + len(sides) :]
    return data[:29] + pack(">I", zlib.crc32(data[12:29])) + data[33:] if kind == "png" else data


SIDES = [(60_000, 60_000), (15_000, 15_000), (10_900, 10_900), (65_535, 1_800), (0, 0), (1, 2**31 - 1), (2**31 - 1, 1)]


def claimed_size(rng: Random) -> Case:
    kind, sides = rng.choice(list(FORMS)), rng.choice(SIDES)
    data = claim(kind, rng.choice(samples(kind)), *sides)
    return Case("folder", among_fine(f"train/a/x.{kind}", data), f"{kind} that claims {sides}")


@cache
def bomb(form: str, mode: str, side: int) -> bytes:
    """An image of one colour; a JPEG image goes over its pixels 20,000 times."""
    settings = {"TIFF": {"compression": "tiff_lzw"}, "JPEG": {"progressive": True}}.get(form, {})
    data = encode(Image.new(mode, (side, side)), form, **settings)
    return data[:-2] + 20_000 * data[data.rindex(b"\xff\xda") : -2] + data[-2:] if form == "JPEG" else data


def real_bomb(rng: Random) -> Case:
    """Images just below or above the limit, three of them, so that three threads have one each."""
    note = rng.choice(["PNG RGBA 10900", "PNG I;16 10900", "PNG 1 10900", "PNG L 15000", "GIF L 10900", "TIFF F 10900",
                       "TIFF CMYK 10900", "BMP 1 15000", "JPEG L 5000"])  # fmt: skip
    form, mode, side = note.split()
    files: Files = {f"train/a/{name}.png": bomb(form, mode, int(side)) for name in "xyz"}
    return Case("folder", files | among_fine("x", b""), note)


OTHER_FORMATS = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%touch canary) (w) file\nshowpage\n%%EOF\n",
    "PSD": b"8BPS\0\1" + bytes(6) + pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(400),
    **{form: encode(Image.new("RGB", (16, 16)), form) for form in ("ICO", "PPM", "PDF", "SGI", "TGA", "PCX")},
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "FLI": pack("<IHHHH", 128, 0xAF11, 1, 60000, 60000) + bytes(116),
    "HTML": b"<html><script>alert(1)</script></html>",
    "XBM": b"#define x_width 99999\n#define x_height 99999\nstatic char x_bits[] = {\n0x00 };\n",
    "pickle": b"cos\nsystem\n(S'touch canary'\ntR.",
    "Python": b"import os; os.system('touch canary')\n",
    "nothing": b"",
    "ELF": b"\x7fELF\2\1\1" + bytes(57),
}


def other_format(rng: Random) -> Case:
    name, data = rng.choice(list(OTHER_FORMATS.items()))
    data = data if rng.random() < 0.6 else mutate(rng, data)
    return Case("folder", among_fine(f"train/a/x.{rng.choice(list(FORMS))}", data), f"{name} as an image")


# Pickles

PIXELS = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
MINI = {"image_data": PIXELS, "class_dict": {"a": [0, 1, 2], "b": [3, 4, 5]}}
PNGS = [np.frombuffer(FINE, np.uint8)] * 3 + [FINE] * 3
LABELS = {"label_specific": np.array([0, 0, 0, 1, 1, 1]), "label_specific_str": ["a", "b"]}
PICKLES = {"mini-imagenet-cache-train.pkl": MINI, "train_images_png.pkl": PNGS, "train_labels.pkl": LABELS}
TIERED: Files = {name: pickle.dumps(PICKLES[name]) for name in ("train_images_png.pkl", "train_labels.pkl")}


def dump(rng: Random, value: Any) -> bytes:
    """A pickle of any protocol, as numpy 1 or 2 would write it."""
    data = pickle.dumps(value, protocol := rng.randrange(6))
    return data.replace(b"cnumpy._core.", b"cnumpy.core.") if protocol < 4 and rng.random() < 0.5 else data


def as_pickle(name: str, data: bytes, note: str) -> Case:
    if name.startswith("mini"):
        return Case("mini-imagenet", {name: data}, note)
    return Case("tiered-imagenet", {**TIERED, name: data}, f"{note}, as {name}")


def push(value: Any) -> bytes:
    """Instructions that put a value on the stack."""
    return pickle.dumps(value, 2)[2:-1]


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"cnumpy\nndarray\nK\0\x85U\1b\x87R"  # waits for (version, shape, type, order, content)
TYPE = b"cnumpy\ndtype\nU\2%sK\0K\1\x87R(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
WORDS = [b"]", b")", b"}", b"(", b"N", b"K\1", b"K\0", b"e", b"a", b"s", b"u", b"t", b"l", b"d", b"\x85", b"\x86",
         b"\x87", b"0", b"1", b"2", b"q\1", b"h\1", b"\x94", b"R", b"b", b"o", b"\x81", b"\x93", b"U\2u1", b"U\2O8",
         b"X\5\0\0\0numpy", b"X\7\0\0\0ndarray", b"I5\n", b"S'x'\n", b"\x8a\1\xff", ARRAY, TYPE % b"u1", TYPE % b"O8",
         RECONSTRUCT, b"c_codecs\nencode\n", b"ccollections\nOrderedDict\n", b"cnumpy.core.multiarray\nscalar\n",
         push(MINI), push(PIXELS), push(LABELS), push({"a": [0]}), *map(push, [*MINI, *LABELS])]  # fmt: skip


def mutated_pickle(rng: Random) -> Case:
    name = rng.choice(list(PICKLES))
    if rng.random() < 0.15:
        return as_pickle(name, b"\x80\2" + b"".join(rng.choices(WORDS, k=rng.randrange(60))) + b".", "random program")
    return as_pickle(name, mutate(rng, dump(rng, PICKLES[name])), "mutated")


TOUCH, CODE = ("touch canary",), ("open('canary', 'w')",)
CALLS: list[tuple[str, str, tuple[Any, ...]]] = [
    *((module, "system", TOUCH) for module in ("os", "posix", "nt", "__main__")), ("os", "popen", TOUCH),
    *(("subprocess", name, (["touch", "canary"],)) for name in ("Popen", "run", "call", "check_output")),
    *((module, name, CODE) for module in ("builtins", "__builtin__") for name in ("eval", "exec", "execfile")),
    *((module, "open", ("canary", "w")) for module in ("builtins", "io", "_io", "codecs", "gzip", "bz2", "lzma")),
    ("builtins", "getattr", ("x", "upper")), ("builtins", "__import__", ("os",)), ("os", "mkdir", ("canary",)),
    ("importlib", "import_module", ("os",)), ("_io", "FileIO", ("canary", "w")), ("timeit", "timeit", CODE),
    ("codecs", "decode", (b"x", "bz2")), ("_codecs", "decode", (b"x", "utf-8")), ("_codecs", "encode", ("x", "idna")),
    ("numpy", "save", ("canary", [1])), ("numpy", "savetxt", ("canary", [1])), ("numpy", "fromfile", ("/dev/zero",)),
    ("numpy", "load", ("train_labels.pkl", None, True)), ("numpy", "memmap", ("canary", "u1", "w+", 0, (9,))),
    ("numpy", "ndarray.tofile", (PIXELS, "canary")), ("numpy", "vectorize", ("x",)), ("numpy", "ndarray", ((2**40,),)),
    ("numpy.testing._private.utils", "runstring", (*CODE, {})), ("numpy.f2py.crackfortran", "myeval", CODE),
    ("functools", "partial", ("x",)), ("functools", "reduce", ("x", [])), ("operator", "attrgetter", ("system",)),
    ("operator", "methodcaller", ("system", *TOUCH)), ("operator", "itemgetter", (0,)), ("types", "FunctionType", ()),
    ("collections", "namedtuple", ("x", "y")), ("collections", "OrderedDict.fromkeys", ([1],)), ("pty", "spawn", TOUCH),
    ("pickle", "loads", (OTHER_FORMATS["pickle"],)), ("torch", "load", ("x",)), ("runpy", "run_path", ("x",)),
    ("shutil", "copy", ("/etc/passwd", "canary")), ("ctypes", "CDLL", ("libc.so.6",)), ("", "", ()),
    ("handful.io", "write_atomic", ("canary", b"x")), ("pathlib", "Path.touch", ("canary",)),
    ("\x1b[31m", "\r", ()),
]  # fmt: skip


def invoke(rng: Random, module: str, name: str, arguments: tuple[Any, ...]) -> bytes:
    """Instructions that would call a function, in one of the ways there are."""
    line, packed, loose = f"{module}\n{name}\n".encode(), push(arguments), b"".join(map(push, arguments))
    known, by_stack = b"c" + line, push(module) + push(name) + b"\x93"
    return rng.choice([
        known + packed + b"R", by_stack + packed + b"R", b"(" + loose + b"i" + line, b"(" + known + loose + b"o",
        known + packed + b"\x81", by_stack + packed + b"}\x92", known + push({"__setstate__": arguments}) + b"b",
        known + b"r\xff\xff\0\0000" + packed + b"r\xfe\xff\0\0000j\xff\xff\0\0j\xfe\xff\0\0R",  # by the memo
        b"ccollections\ndefaultdict\n" + known + b"\x85R" + push("missing") + b"Ns", known + b")\x81}b",
        b"cfunctools\npartial\n(" + known + loose + b"tR)R", b"cnumpy\ndtype\n" + known + packed + b"R\x85R",
        b"cbuiltins\ngetattr\ncbuiltins\n__import__\n" + push((module,)) + b"R" + push(name) + b"\x86R" + packed + b"R",
        ARRAY + b"(K\1K\1\x85" + TYPE % b"O8" + b"\x89](" + known + packed + b"Retb", b"\x82\1" + packed + b"R",
        ARRAY + push({"__reduce__": 1}) + b"b", b"Pos.system\n", push("os.system") + b"Q",
    ])  # fmt: skip


def malicious_pickle(rng: Random) -> Case:
    module, name, arguments = rng.choice(CALLS)
    program, file = invoke(rng, module, name, arguments), rng.choice(list(PICKLES))
    places = [b"@.", b"@0" + push(PICKLES[file]) + b".", b"}X\n\0\0\0image_data@s.", b"}@Ns.", b"]@a.", b"(@1N."]
    return as_pickle(file, b"\x80\2" + rng.choice(places).replace(b"@", program), f"{module}.{name}")


@cache
def memory_tricks() -> dict[str, bytes]:
    """Small pickles that would take much memory or time, break a recursion, or flood a hash table."""
    many, prime = 100_000, 2**61 - 1  # a whole number's hash is its remainder by this prime
    collide = [number * prime for number in range(70_000)]
    long, rows = b"X\0\0\x10\0" + b"\n" * (1 << 20), b"\x8a\6\0\x10\xa5\xd4\xe8\0"  # 10**12
    images, classes = b"}X\n\0\0\0image_data", b"sX\n\0\0\0class_dict"
    names = b"}X\x0e\0\0\0label_specific](" + b"K\0" * 6 + b"esX\x12\0\0\0label_specific_str"
    boxed = ARRAY + b"(K\1K\1\x85" + TYPE % b"O8" + b"\x89](%setb"  # an array of one object
    hollow = ARRAY + b"(K\1%s" + TYPE % b"u1" + b"\x89U\0tb"  # an array of no bytes and any shape
    scalar = (
        b"cnumpy.core.multiarray\nscalar\nq\1cnumpy\ndtype\nU\7S999999\x85RB?B\x0f\0" + b"x" * 999_999 + b"\x86q\2R"
    )
    nothing = RECONSTRUCT + b"q\1" + TYPE % b"O8" + b"q\2](" + b"N" * many + b"eq\3)q\4"
    return {
        "huge memo": b"Nr\xff\xff\xff\xff.", "flooded memo": b"N" + b"".join(b"p%d\n" % n for n in collide) + b".",
        "flooded dict": b"}(" + b"".join(b"\x8a\x0c" + n.to_bytes(12, "little") + b"N" for n in collide) + b"u.",
        "huge bytes": b"\x8e" + pack("<Q", 2**62) + b"x.", "huge text": b"\x8d" + b"\xff" * 8 + b".",
        "huge array": b"\x96" + pack("<Q", 2**40) + b"x.", "negative string": b"T\xff\xff\xff\xff.",
        "huge number": b"\x8b\xff\xff\xff\x7fx.", "negative number": b"\x8b\xff\xff\xff\xffx.",
        "long number": b"I" + b"9" * 10**6 + b"\n.", "long float": b"F" + b"9" * 10**6 + b"\n.",
        "nested lists": b"]" * many + b"a" * (many - 1) + b".", "nested tuples": b")" + b"\x85" * many + b".",
        "nested dicts": b"}" + b"K\1}" * many + b"s" * many + b".", "nested marks": b"(" * many + b"t" * many + b".",
        "nested arrays": b"Nq\0" + (b"0" + boxed % b"h\0" + b"q\0") * 20_000 + b".",
        "nested lists of arrays": b"Nq\0" + (b"0" + boxed % b"](h\0e" + b"q\0") * 20_000 + b".",
        "laughs": b")" + b"2\x86" * 200 + b".", "laughs as key": b"})" + b"2\x86" * 200 + b"Ns.",
        "laughs as names": names + b"]" + b"2\x86" * 90 + b"s.", "list in itself": b"]q\0h\0a.",
        "laughs as images": images + b"]" + b"2\x86" * 90 + b"s.", "dict in itself": b"}q\0X\1\0\0\0ah\0s.",
        "names in themselves": names + b"]q\0h\0as.", "marks": b"(" * 10**6, "lists": b"]" * 10**6 + b".",
        "shared text": b"](c_codecs\nencode\nq\1" + long + b"\x85q\2R" + b"h\1h\2R" * many + b"e.",
        "shared scalar": b"](" + scalar + b"h\1h\2R" * many + b"e.",
        "shared objects": b"](" + nothing + (b"h\1h\4R(K\1J" + pack("<i", many) + b"\x85h\2\x89h\3tb") * 10_000 + b"e.",
        "shared names": names + b"](" + long + b"q\1" + b"h\1" * many + b"es.",
        "shared bytes as names": names + b"](T" + long[1:] + b"q\1" + b"h\1" * many + b"es.",
        "empty rows": hollow % (rows + b"K\0\x86") + b".", "empty names": names + hollow % (rows + b"K\0\x86") + b"s.",
        "empty images": images + hollow % (b"(" + rows + b"K\0K\0K\0t") + classes + b"}X\1\0\0\0a]K\0ass.",
    }  # fmt: skip


def memory_pickle(rng: Random) -> Case:
    note, data = rng.choice(list(memory_tricks().items()))
    return as_pickle(rng.choice(list(PICKLES)), b"\x80\2" + data, note)


class Array:
    """Pickles as an array of any shape, type and content."""

    def __init__(self, shape: Any, dtype: Any = "u1", content: Any = b"x" * 6) -> None:
        self.state = 1, shape, dtype and np.dtype(dtype), False, content

    def __reduce__(self) -> Any:
        return np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), self.state


ODD: list[Any] = [
    None, 5, -1, 2**70, 1.5, float("nan"), "text", b"bytes", "\x1b[2J\n", "\udcff", [], {}, (), [[]], [{}], [0, 1],
    {"a": {"b": []}}, [-1], [10**6], [2**70], [True, False], [0, 0], [1.5], ["0"], [None], {"a": [0], "b": [0]},
    {"a": range}, {1: [0], None: [1]}, {"a": [0], "b": [-1]}, {"a": [6]}, {"a": []}, {"a": np.array([0, 1])},
    {True: [0], 2.5: [1]}, {"a": np.array([2**63], "u8")}, {"\x1b]0;x\x07": [0]}, {"a\nb": [0, 1]}, {"x" * 10_000: [0]},
    {b"\xff": [0]}, PIXELS[0], PIXELS[None], PIXELS.astype("f4"), PIXELS.astype("i8"), PIXELS.astype(object),
    PIXELS[:0], PIXELS[:, :0], np.asfortranarray(PIXELS), PIXELS[..., :2], PIXELS[..., 0],
    np.zeros((6, 8, 8, 300), "u1"), PIXELS.view("V1"), np.array(5), np.zeros(6, "u1,f4"), np.zeros(6, "M8[s]"),
    np.zeros(6, "c8"), np.zeros(6), np.ones(6, "?"), np.array(["a", "b"]), np.array([b"a", b"b"]),
    np.array([["a"], ["b"]]), np.array(["a", None], object), np.arange(7), np.array([0, 0, 0, 1, 1, -1]),
    np.array([2**63] * 6, "u8"), np.array([0, 0, 0, 9, 9, 9]), np.arange(5), [0] * 6, np.zeros((6, 0), "u1"),
    [np.zeros((2, 2), "u1")] * 6, np.zeros(6, "S0"), np.zeros(6, "U3"), ["a"] * 6, ("a", "b"), [b"a", b"b"],
    ["a", ["b"]], ["a", ("b", {})], [FINE, None, 5, [], {}, OTHER_FORMATS], Array((-6,)), Array((-2, -3)),
    Array((2**63, 2)), Array((2**64 + 6,)), Array((6, 10**9)), Array((3,)), Array((0, 2**40)), Array((6,) + (1,) * 70),
    Array([6]), Array((6.0,)), Array(6), Array((6,), None), Array((6,), "O", [1] * 6), Array((6,), "O", [[]]),
    Array((1,), "<U1", b"\xff" * 4), Array((2,), ">U2", b"\xff" * 16), Array((), "u1", b""), Array((2**40,), "S0", b""),
    Array((), "<U1", b"\xff" * 4), Array((6,), "u1", "text"), Array((6, 8, 8, 3), "u1", bytearray(1152)),
]  # fmt: skip


def wrong_shape(rng: Random) -> Case:
    file = rng.choice(list(PICKLES))
    value: Any = PICKLES[file]
    if isinstance(value, dict) and rng.random() < 0.9:
        value = {key: rng.choice(ODD) if rng.random() < 0.6 else entry for key, entry in value.items()}
        value.pop(rng.choice([*value, *range(20)]), None)
    else:
        value = rng.choice(ODD)
    return as_pickle(file, dump(rng, value), "wrong shape")


# Archives of arrays


def archive(*members: Member, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore")  # that a name is there twice is meant
        for name, content in members:
            file.writestr(name, content, method)
    return buffer.getvalue()


FLAGS, METHOD, CRC, PACKED, SIZE, NAME = (6, 8), (8, 10), (14, 16), (18, 20), (22, 24), (26, 28)


def patch(data: bytes, offsets: tuple[int, int], value: bytes) -> bytes:
    """An archive with a field overwritten, in all its local headers and in its table of contents."""
    content = bytearray(data)
    for signature, offset in zip((b"PK\3\4", b"PK\1\2"), offsets, strict=True):
        for found in re.finditer(signature, data):
            content[found.start() + offset : found.start() + offset + len(value)] = value
    return bytes(content)


def inflated(*members: Member, start: bytes = b"", unit: bytes = bytes(1 << 20), times: int) -> bytes:
    """An archive whose last member goes on with ``unit`` so many times, without the work of packing all of them."""

    def packed(data: bytes) -> bytes:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)  # can be put together with others

    crc = zlib.crc32(start)
    for _ in range(times):
        crc = zlib.crc32(unit, crc)
    name, content = members[-1][0], packed(start) + packed(unit) * times + b"\3\0"
    data = bytearray(archive(*members[:-1], (name, content), method=zipfile.ZIP_STORED))
    size = pack("<I", len(start) + times * len(unit))
    for offsets, value in ((METHOD, b"\x08\0"), (CRC, pack("<I", crc)), (SIZE, size)):
        for signature, offset in zip((b"PK\3\4", b"PK\1\2"), offsets, strict=True):
            at = data.rindex(signature) + offset
            data[at : at + len(value)] = value
    return bytes(data)


def npy(header: str, body: bytes = PIXELS.tobytes(), version: int = 1) -> Member:
    length = pack("<H" if version == 1 else "<I", len(header))
    return "a.npy", b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + body


def header(shape: str = "(6, 8, 8, 3)", descr: str = "'|u1'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def saved(*arrays: Any, save: Callable[..., None] = np.savez_compressed) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **{f"n{number}": array for number, array in enumerate(arrays)})
    return buffer.getvalue()


class Touch:
    """Creates a canary when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, TOUCH


def as_npz(rng: Random, data: bytes, note: str) -> Case:
    if rng.random() < 0.5:
        return Case("mini-imagenet", {"train.npz": data}, note)
    return Case("tiered-imagenet", {"train_images.npz": data, "train_labels.pkl": TIERED["train_labels.pkl"]}, note)


def mutated_npz(rng: Random) -> Case:
    arrays = rng.choice([(PIXELS,), (PIXELS, PIXELS), (PIXELS / np.float32(255),), (PIXELS.transpose(0, 3, 1, 2),)])
    return as_npz(rng, mutate(rng, saved(*arrays, save=rng.choice((np.savez, np.savez_compressed)))), "mutated")


@cache
def odd_arrays() -> dict[str, bytes]:
    """Archives of arrays that are none, or not what they say."""
    shapes = ("(-6, -8, 8, 3)", "(-1, 8, 8, 3)", "(6, -8, -8, 3)", "(1000000000000, 8, 8, 3)", "(6, 8, 8)", "5", "()",
              "(0, 8, 8, 3)", "(6, 8, 8, 3, 1)", "(6.0, 8, 8, 3)", "(True, 1152)", "None", "(6, 8, 8, 4)", "('6',)",
              "(99999999999999999999, 8, 8, 3)", "(1, 1, 1, 1152)", "(1152, 1, 1, 1)")  # fmt: skip
    types = ("'|O'", "'|V1'", "'<f8'", "'<U1'", "'<M8[s]'", "'|S1'", "'<c16'", "[('a', '|u1')]", "('|u1', (2, 2))",
             "5", "'|b1'", "'O8,O8'", "None", "'\\x1b[31m'", "'|V2147483647'", "'<f2'", "'>i2'", "'<i8'",
             "'int'")  # fmt: skip
    headers = ["__import__('os').system('touch canary')\n", "(lambda: 0)()\n", "(" * 9000 + ")" * 9000, "9**9**9\n", "",
               "-" * 9000 + "1\n", "[]\n", "'" + "x" * 9000 + "'\n", "\x1b[31m\n", "'\\d'\n", "{'descr': '|u1'}\n",
               header() + " " * 50_000, header(order="True"), header(order="5"), *map(header, shapes),
               *(header(descr=descr) for descr in types)]  # fmt: skip
    sound, far = saved(PIXELS), header("(4294900000, 1, 1, 1)")
    return {f"header {text[:99]!r}": archive(npy(text)) for text in headers} | {
        "hollow": archive(npy(header("(1000000000000, 0, 8, 3)"), b"")), "zeros": archive(("a.npy", bytes(1 << 26))),
        "objects": saved(np.array([Touch()] * 6, object)), "objects in four": saved(np.full((6, 1, 1, 1), Touch())),
        "huge header": inflated(("a.npy", b""), start=npy("", b"", 2)[1][:8] + pack("<I", 700 << 20), times=700),
        "version 3": archive(npy("{}", b"", 3)),
        "claimed header": archive(("a.npy", b"\x93NUMPY\2\0\xff\xff\xff\xff" + header().encode())),
        "large rows": inflated(("a.npy", b""), start=npy(header("(1, 10000, 10000, 1)", "'<f8'"), b"")[1],
            unit=bytes(800_000), times=1000), "none": archive(),
        "claimed size": patch(archive(npy(far, b"")), SIZE, pack("<I", 4_294_900_010 + len(far))),
        "no .npy": archive(("a", npy(header())[1])), "large": saved(PIXELS.astype("f2") * 200),
        "scalars": saved([[1], [2]], 5), "twice": archive(npy(header()), npy(header())), "text": archive(("a", b"x")),
        "name": archive(("\x1b[3\n.npy", npy(header())[1])), "long double": saved(PIXELS.astype("g")),
        "ways out": archive(("../../a.npy", npy(header())[1]), ("/etc/b.npy", b"")), "no rows": saved(PIXELS[:0]),
        "bzip2": archive(npy(header()), method=zipfile.ZIP_BZIP2), "encrypted": patch(sound, FLAGS, b"\1"),
        "no method": patch(sound, METHOD, b"\x63\0"), "NaN": saved(np.full((6, 8, 8, 3), np.nan)),
        "infinite": saved(np.full((6, 8, 8, 3), -np.inf)), "negative": saved(PIXELS.astype("i8") - 300),
    }  # fmt: skip


def odd_npz(rng: Random) -> Case:
    note, data = rng.choice(list(odd_arrays().items()))
    return as_npz(rng, data if rng.random() < 0.8 else mutate(rng, data[:100_000]), note)


# Archives of images, and tables

FINE_MEMBERS: list[Member] = [(f"train/{name}/fine.png", FINE) for name in "ab"]
WAYS_OUT = ["../x.png", "/etc/x.png", "C:\\x.png", "..\\x.png", "train/a/../../../x.png", "train/../../x.png",
            "train/..", "train/a/..\\..\\x.png", "train/a/C:x.png", "train/../../../../tmp/x.png", "/train/a/x.png",
            "//host/x.png", "../train/a/x.png", "train/a/\\\\host\\x.png", "file:///x.png", "c/../../x"]  # fmt: skip
ODD_NAMES = ["\x1b[31mred.png", "\x07\x08\r\n.png", "\x1b]0;title\x07.png", "\u202egnp.exe.png", "x" * 10_000 + ".png",
             "a/" * 30_000 + "x.png", "\x7f.png", " .png", "\u2028.png", "x.png/y.png", "%s%n.png", "[bold]x.png",
             ".png", "[/nothing]\x1b.png", "x\0x.png", "x.PNG\t", "é" * 99 + ".png"]  # fmt: skip


def mutated_zip(rng: Random) -> Case:
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    return Case("folder", {"data.zip": mutate(rng, archive(*FINE_MEMBERS, method=method))}, "mutated")


def odd_zip(rng: Random) -> Case:
    """Members that lead out, lie about themselves or cannot be read."""
    sound, link = archive(*FINE_MEMBERS), zipfile.ZipInfo("train/a/link.png")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    folder, out, name = rng.choice(("train/a/", "train/", "")), rng.choice(WAYS_OUT), rng.choice(ODD_NAMES)
    sizes = [b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x10", pack("<I", len(FINE) + 1)]
    utf8, end = patch(archive(*FINE_MEMBERS, ("train/a/ABC.png", FINE)), FLAGS, b"\0\x08"), sound.index(b"PK\5\6")
    ways = {
        f"way out {out}": archive(*FINE_MEMBERS, (out, OUTSIDE)), "noise": rng.randbytes(500), "nothing": b"",
        f"name {name[:20]!r}": archive(*FINE_MEMBERS, (folder + name, rng.choice((FINE, b"x")))), "none": archive(),
        f"class {name[:20]!r}": archive(*FINE_MEMBERS, (f"train/{name}/x.png", rng.choice((FINE, b"x")))),
        "encrypted": patch(sound, FLAGS, b"\1\0"), "strongly encrypted": patch(sound, FLAGS, b"\x41\0"),
        "method": patch(sound, METHOD, bytes([rng.choice((1, 6, 9, 12, 14, 93, 95, 97, 98, 99)), 0])),
        "checksum": patch(sound, CRC, rng.randbytes(4)), "size": patch(sound, SIZE, rng.choice(sizes)),
        "packed size": patch(sound, PACKED, rng.choice(sizes)), "offset": patch(sound, (26, 42), rng.choice(sizes)),
        "no text": utf8.replace(b"ABC", b"\xff\xfe\xed"), "half a character": utf8.replace(b"ABC", b"\xed\xb3\xbf"),
        "other name": sound.replace(b"train/a/fine", b"train/a/evil", 1), "long name": patch(sound, NAME, b"\xff\xff"),
        "nested": archive(*FINE_MEMBERS, ("train/a/x.png", sound), ("train/a/y.zip", sound)), "no end": sound[:end],
        "twice": archive(*FINE_MEMBERS, *FINE_MEMBERS), "before": rng.randbytes(99) + sound, "only an end": sound[end:],
        "folder as file": archive(*FINE_MEMBERS, ("train/a", b"x"), ("train", b"x"), ("train/a/x.png/", b"")),
        "link": archive(*FINE_MEMBERS, (link, b"../outside.png")), "after": sound + rng.randbytes(99),
        "disks": sound[:-18] + b"\xff" * 4 + sound[-14:], "entries": sound[:-14] + b"\xff" * 4 + sound[-10:],
    }  # fmt: skip
    note = rng.choice(list(ways))
    return Case("folder", {"data.zip": ways[note], "outside.png": OUTSIDE}, note)


def overlapping(members: int, size: int) -> bytes:
    """Members that each quote the header of the next, and share one block of zeros (Fifield 2019)."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream, local, table = deflate.compress(bytes(size)) + deflate.flush(), b"", []
    for number in range(members):
        name = b"train/a/%06d.png" % number
        if local:
            stream = b"\0" + pack("<HH", len(local), len(local) ^ 0xFFFF) + local + stream
        fields = pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, 0, len(stream), size + number * len(local), len(name), 0)
        local = b"PK\3\4" + fields + name
        table.append((b"PK\1\2\x14\0" + fields + bytes(10), len(local) + len(stream), name))
    body = local + stream
    entries = b"".join(entry + pack("<I", len(body) - back) + name for entry, back, name in table)
    return body + entries + b"PK\5\6" + pack("<HHHHIIH", 0, 0, members, members, len(entries), len(body), 0)


@cache
def zip_bomb_bytes(note: str) -> bytes:
    if note == "overlapping":
        return overlapping(400, 250 << 20)
    if note == "large images":  # 96 MiB each, but black
        image = encode(Image.new("RGB", (5800, 5800)), "BMP")
        return archive(*((f"train/a/{number}.bmp", image) for number in range(10)))
    if note == "many":
        return archive(*((f"train/{number % 9}/{number}.png", b"") for number in range(30_000)), *FINE_MEMBERS)
    amount, method, claimed = note.split()
    if method == "DEFLATED":
        data = inflated(*FINE_MEMBERS, ("train/a/x.png", b""), times=int(amount))
    else:
        content = bytes(int(amount) << 20)
        data = archive(*FINE_MEMBERS, ("train/a/x.png", content), method=getattr(zipfile, f"ZIP_{method}"))
    last = data.rindex(b"PK\1\2")
    return data if claimed == "honest" else data[:last] + patch(data[last:], SIZE, pack("<I", int(claimed)))


def zip_bomb(rng: Random) -> Case:
    """Archives that are small only as long as they are packed: MiB, method, claimed bytes."""
    note = rng.choice(["1024 DEFLATED honest", "1024 DEFLATED 99", "1024 DEFLATED 200000000", "200 DEFLATED honest",
                       "700 BZIP2 99", "700 LZMA 99", "overlapping", "large images", "many"])  # fmt: skip
    return Case("folder", {"data.zip": zip_bomb_bytes(note)}, f"zip bomb, {note}")


def odd_table(rng: Random) -> Case:
    """miniImageNet as images/ and a table that asks for files elsewhere, or is no table."""
    names = ["fine.png", "deep/fine.png", "../outside.png", "/etc/passwd", "images/../../outside.png", "fine.png\0",
             "..\\outside.png", "\x1b[31m.png", "", ".", "..", "images", "fine.png/", "./fine.png", "x" * 9000, "=1+1",
             "\u202e.png", "missing.png", "deep/../fine.png", '"fine.png', "a\rb"]  # fmt: skip
    labels = ["a", "b", "", "\x1b[2J", "a,b,c", '"a\nb"', "\u2028", "x" * 9000, "\0", "[red]"]
    starts = ["filename,label"] * 6 + ["label,filename", "", "a;b", "filename,label,filename", '"filename","label']
    lines = [f"{rng.choice(names)},{rng.choice(labels)}" for _ in range(rng.randrange(9))]
    text = rng.choice(["\n", "\r\n", "\r", "\n\n"]).join([rng.choice(starts), "fine.png,a", *lines]).encode()
    if rng.random() < 0.4:
        text = rng.choice([text.decode().encode("utf-16"), b"\xef\xbb\xbf" + text, rng.randbytes(300), b"",
                           text + b"," * 10**6, text + b"\n" + b"x" * 10**6 + b",a", text + b"\0" * 99, b"\n" * 999,
                           mutate(rng, text), text + b'\n"' + b"x\n" * 10**5, text + b"\nx,a" * 150_000])  # fmt: skip
    files = {"train.csv": text, "images/fine.png": FINE, "images/deep/fine.png": FINE, "outside.png": OUTSIDE}
    return Case("mini-imagenet", {"data.zip": archive(*files.items())} if rng.random() < 0.3 else {**files}, "table")


# Folders


def link(target: str) -> Content:
    return lambda path: path.symlink_to(target)


def sparse(path: Path) -> None:
    """A terabyte that takes no room."""
    path.touch()
    os.truncate(path, 1 << 40)


def locked(path: Path) -> None:
    path.write_bytes(FINE)
    path.chmod(0)


SPECIAL: dict[str, Content] = {
    "broken link": link("nowhere"), "link to itself": link("x.png"), "link out": link("../../../train"),
    "pipe": os.mkfifo, "zeros": link("/dev/zero"), "terminal": link("/dev/tty"), "memory": link("/proc/self/mem"),
    "folder": Path.mkdir, "terabyte": sparse, "locked": locked, "locked folder": lambda path: path.mkdir(0),
    "loop": link("."), "image": FINE, "text": b"text",
}  # fmt: skip
PLACES = ["train/a/x.png", "train/x.png", "x.png", "train/a/b/c/x.png", "train/c", "val", "train/a/\x1b[31m\n.png", "c",
          "train/a/\udcff\udcfe.png", "train/\x1b[2J/x.png", "train/\udcff/\r.png",
          f"train/a/{'x' * 250}.png"]  # fmt: skip
SPOTS = ["mini-imagenet mini-imagenet-cache-train.pkl", "mini-imagenet train.npz", "mini-imagenet train.csv",
         "mini-imagenet images", "tiered-imagenet train_labels.pkl", "tiered-imagenet train_images.npz",
         "omniglot images_background.zip", "omniglot images_evaluation", "folder data.zip"]  # fmt: skip


def odd_folder(rng: Random) -> Case:
    """Things in a folder that are no files, or have names that are no names."""
    note, content = rng.choice(list(SPECIAL.items()))
    if rng.random() < 0.3 and note != "terabyte":  # a whole pickle of that size would be read, with a progress bar
        dataset, place = rng.choice(SPOTS).split()
    else:
        dataset, place = rng.choice(("folder", "mini-imagenet", "tiered-imagenet")), rng.choice(PLACES)
    files = among_fine(place, content) if rng.random() < 0.8 else {place: content}
    return Case(dataset, files, f"{note} as {place[:40]!r}")


def odd_omniglot(rng: Random) -> Case:
    """Omniglot with one drawing of each character, incomplete or damaged."""
    parts: dict[str, list[Member]] = {
        part: [(f"{part}/{part}_{n // 20}/character{n % 20}/{n}.png", FINE) for n in range(count)]
        for part, count in (("images_background", 964), ("images_evaluation", 659))
    }
    part, note = rng.choice(list(parts)), rng.choice(["missing", "odd names", "drawings", "damaged", *SPECIAL])
    if note == "missing":
        del parts[part][rng.randrange(600) :]
    elif note == "odd names":
        parts[part] += [(f"{part}/{rng.choice(WAYS_OUT)}", OUTSIDE), (f"{part}/a/b/{rng.choice(ODD_NAMES)}", b"x")]
    elif note == "drawings":
        parts[part][:50] = [(name, mutate(rng, drawing)) for name, drawing in parts[part][:50]]
    packed = {name: archive(*members, method=zipfile.ZIP_STORED) for name, members in parts.items()}
    files: Files = {f"{name}.zip": mutate(rng, data) if note == "damaged" else data for name, data in packed.items()}
    if note in SPECIAL:
        del files[f"{part}.zip"]
        files |= {str(name): drawing for name, drawing in parts[part]}
        files[f"{part}/{part}_0/character0/x.png"] = SPECIAL[note]
    return Case("omniglot", files, note)
