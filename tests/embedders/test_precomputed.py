"""``npy:FILE``: vectors that were computed elsewhere, in files that may be damaged or hostile."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from handful import HandfulError
from handful.embedders import load_embedder

NAMES = ["a.jpg", "b/c.jpg", "d.jpg"]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


def rows(path, names=tuple(NAMES)):
    return load_embedder(f"npy:{path}").rows(list(names))


def refused(path, sentence, names=tuple(NAMES)):
    with pytest.raises(HandfulError, match=sentence) as caught:
        rows(path, names)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("vectors", [VECTORS, np.asfortranarray(VECTORS), VECTORS.astype(">f8"), VECTORS.astype("f2")])
def test_sound_files(tmp_path, monkeypatch, save, vectors):
    monkeypatch.setattr("handful.embedders.precomputed.CHUNK", 20)  # in several parts
    np.save(tmp_path / "v.npy", vectors)
    np.testing.assert_array_equal(rows(tmp_path / "v.npy"), VECTORS)
    save(tmp_path / "v.npz", paths=np.array(NAMES), vectors=vectors, other=np.zeros(3))
    np.testing.assert_array_equal(rows(tmp_path / "v.npz"), VECTORS)
    np.testing.assert_array_equal(rows(tmp_path / "v.npz", ["d.jpg", "a.jpg"]), VECTORS[[2, 0]])
    assert load_embedder(f"npy:{tmp_path / 'v.npz'}").dim == 4


def test_cut_anywhere(tmp_path):
    path = tmp_path / "v.npz"
    np.savez_compressed(path, paths=np.array(NAMES), vectors=VECTORS)
    content = path.read_bytes()
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        refused(path, "is not an array of vectors")
    path = tmp_path / "v.npy"
    np.save(path, VECTORS)
    content = path.read_bytes()
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        refused(path, "is not an array of vectors")


def test_flipped_bits_never_give_other_vectors(tmp_path):
    """The archive has a checksum of each array; what it does not cover only gives a sentence."""
    path = tmp_path / "v.npz"
    np.savez(path, paths=np.array(NAMES), vectors=VECTORS)
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            found = rows(path)
        except HandfulError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found, VECTORS)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"vectors": VECTORS}, "has no array 'paths'"),
        ({"paths": NAMES, "x": VECTORS}, "has no array 'vectors'"),
        ({"paths": NAMES, "vectors": VECTORS[0]}, r"should hold floats of shape \(images, dim\), got float32 of shape"),
        ({"paths": NAMES, "vectors": VECTORS[:, :0]}, r"got float32 of shape \(3, 0\)"),
        ({"paths": NAMES, "vectors": VECTORS.astype(int)}, "got int64"),
        ({"paths": NAMES, "vectors": VECTORS * 1j}, "got complex"),
        ({"paths": NAMES, "vectors": VECTORS.astype(str)}, "got <U"),
        ({"paths": NAMES, "vectors": VECTORS.astype(object)}, "holds pickled objects"),
        ({"paths": np.array(NAMES, dtype=object), "vectors": VECTORS}, "holds pickled objects"),
        (
            {"paths": np.array(NAMES, dtype=bytes), "vectors": VECTORS},
            r"'paths' in .* should be 3 names as text.* got \|S7",
        ),
        ({"paths": [[name] for name in NAMES], "vectors": VECTORS}, r"should be 3 names .* of shape \(3, 1\)"),
        ({"paths": NAMES[:2], "vectors": VECTORS}, r"should be 3 names .* of shape \(2,\)"),
        ({"paths": [*NAMES, "e.jpg"], "vectors": VECTORS}, r"should be 3 names .* of shape \(4,\)"),
        ({"paths": ["a.jpg", "b/c.jpg", "a.jpg"], "vectors": VECTORS}, "has two vectors of 'a.jpg'"),
        ({"paths": NAMES, "vectors": np.where(VECTORS == 5, np.nan, VECTORS)}, "no finite vector for b/c.jpg"),
        ({"paths": NAMES, "vectors": np.where(VECTORS == 9, np.inf, VECTORS)}, "no finite vector for d.jpg"),
        (
            {"paths": NAMES, "vectors": np.where(VECTORS == 1, 1e300, VECTORS.astype(float))},
            "no finite vector for a.jpg",
        ),
        ({"paths": ["x", "y", "z"], "vectors": VECTORS}, r"has no vector of 'a.jpg' \(3 images are missing\)"),
    ],
)
def test_archives_that_do_not_fit(tmp_path, arrays, sentence):
    np.savez(tmp_path / "v.npz", **arrays)
    refused(tmp_path / "v.npz", sentence)


def test_vectors_that_are_not_used_may_be_anything(tmp_path):
    np.savez(tmp_path / "v.npz", paths=NAMES, vectors=np.where(VECTORS == 5, np.nan, VECTORS))
    np.testing.assert_array_equal(rows(tmp_path / "v.npz", ["a.jpg", "d.jpg"]), VECTORS[[0, 2]])


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (VECTORS[0], "should hold floats"),
        (VECTORS.astype(int), "got int64"),
        (VECTORS.astype(object), "is not an array of vectors"),
        (np.where(VECTORS == 5, np.nan, VECTORS), "no finite vector for b/c.jpg"),
        (VECTORS[:2], "has 2 vectors, but there are 3 images"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, array, sentence):
    np.save(tmp_path / "v.npy", array)
    refused(tmp_path / "v.npy", sentence)


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "shape", ["(1000000000000, 4)", "(3, 1000000000000)", "(-1, 4)", "(3, -4)", "()", "3", "(3.5, 4)"]
)
def test_what_a_file_claims_is_not_believed(tmp_path, shape):
    (tmp_path / "v.npy").write_bytes(header(shape) + VECTORS.tobytes())
    refused(tmp_path / "v.npy", "is not an array of vectors|should hold floats")
    paths = io.BytesIO()
    np.save(paths, np.array(NAMES))
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        archive.writestr("paths.npy", paths.getvalue())
        archive.writestr("vectors.npy", header(shape) + VECTORS.tobytes())
    refused(tmp_path / "v.npz", "is not an array of vectors|should hold floats")


def test_a_bomb_takes_no_memory(tmp_path, monkeypatch):
    """A hundred megabytes of empty names, well packed: the second is refused, and the rest never unpacked."""
    count, unpacked = 1 << 20, []
    with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, dtype, shape in (("paths", "<U25", f"({count},)"), ("vectors", "<f4", f"({count}, 4)")):
            size = np.dtype(dtype).itemsize * (4 if name == "vectors" else 1) * count
            with archive.open(f"{name}.npy", "w") as file:
                file.write(header(shape, dtype))
                for start in range(0, size, 1 << 22):
                    file.write(bytes(min(1 << 22, size - start)))
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda file, n=-1: (unpacked.append(n), read(file, n))[1])
    refused(tmp_path / "v.npz", "has two vectors of ''")
    assert 0 < sum(unpacked) < 1 << 25 and min(unpacked) > 0


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04.", b"text", header("(3, 4)")[:40]]
)
@pytest.mark.parametrize("name", ["v.npy", "v.npz"])
def test_what_is_no_array(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "is not an array of vectors")


def test_no_file(tmp_path):
    refused(tmp_path / "nothing.npy", "there are no vectors at")
    refused(tmp_path, "is not an array of vectors")
    refused("\0", r"\\x00 is not an array of vectors")
    refused("a" * 5000, "is not an array of vectors")
    refused("", "npy needs a file: npy:vectors.npy")
