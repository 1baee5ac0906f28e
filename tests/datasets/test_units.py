"""Sources of very many images, and their units."""

from __future__ import annotations

import io
import tarfile
import zipfile
from contextlib import suppress

import layouts
import numpy as np
import pytest

from handful import HandfulError
from handful.datasets import arrow as arrow_files
from handful.datasets import tar_stream
from handful.datasets.images import BrokenImage
from handful.datasets.units import Damaged, Unit, plan, unit_items

CONTENT = layouts.images(37)


def read(found):
    """Contents by name; where it cannot be read, the reason."""
    contents = {}
    for unit in found.units:
        for item in unit_items(Unit.from_json(unit.to_json())):
            assert item.name not in contents
            try:
                contents[item.name] = item.read()
            except BrokenImage as error:
                contents[item.name] = str(error)
    return contents


def made(kind, path):
    if kind == "folder":
        return [layouts.folder(path / "photos", CONTENT)]
    if kind == "zip":
        return [layouts.zipped(path / "photos.zip", CONTENT)]
    if kind.startswith("tar"):
        mode = {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind]
        return [
            layouts.tarred(path / f"{n}.{kind}", half, mode) for n, half in enumerate(layouts.halves(CONTENT))
        ]  # fmt: skip
    pytest.importorskip("pyarrow")
    if kind == "parquet":
        return [layouts.parquet(path / f"{n}.parquet", half) for n, half in enumerate(layouts.halves(CONTENT))]
    return [layouts.arrow(path / "photos.arrow", CONTENT, stream=kind == "arrow stream")]


KINDS = ("folder", "zip", "tar", "tar.gz", "tar.xz", "parquet", "arrow", "arrow stream")


@pytest.mark.parametrize("kind", KINDS)
def test_all_layouts_hold_the_same_images(kind, tmp_path):
    sources = list(map(str, made(kind, tmp_path)))
    found = plan(sources, 10)
    assert read(found) == CONTENT and not found.problems
    assert len({unit.key for unit in found.units}) == len(found.units)
    assert all(unit.images is None or unit.images <= 20 for unit in found.units)
    if kind != "arrow stream" and not kind.startswith("tar"):
        assert len(found.units) >= 3 and found.images == len(CONTENT)
    assert plan(sources, 10).units == found.units, "the same sources have the same units"
    for unit in found.units:
        whole = [item.name for item in unit_items(unit)]
        assert [item.name for item in unit_items(unit, 3)] == whole[3:]


def test_lists_name_sources_beside_them(tmp_path):
    one, two = layouts.halves(CONTENT)
    layouts.folder(tmp_path / "photos", one)
    layouts.tarred(tmp_path / "more.tar", two)
    (tmp_path / "list.txt").write_text(f"# sources\nphotos\n\n{tmp_path / 'more.tar'}\nmissing.zip\n")
    found = plan([str(tmp_path / "list.txt")], 10)
    assert read(found) == CONTENT
    assert list(found.problems.values()) == [f"no such file or folder: {tmp_path / 'missing.zip'}"]
    (tmp_path / "single.txt").write_text("\n".join(f"photos/{name}" for name in one))
    singles = plan([str(tmp_path / "single.txt")], 10)
    assert {name.removeprefix(f"{tmp_path}/photos/"): data for name, data in read(singles).items()} == one
    assert len(singles.units) < len(one), "they go together"


def test_a_folder_of_shards_is_its_shards(tmp_path):
    (tmp_path / "shards").mkdir()
    for number, half in enumerate(layouts.halves(CONTENT)):
        layouts.tarred(tmp_path / "shards" / f"{number}.tar", half)
    assert read(plan([str(tmp_path / "shards")])) == CONTENT


def test_a_source_is_the_same_however_it_is_named(tmp_path, monkeypatch):
    path = layouts.folder(tmp_path / "photos", CONTENT)
    monkeypatch.chdir(tmp_path)
    keys = [
        [unit.key for unit in plan([name]).units] for name in (str(path), "photos", "photos/", "./photos/../photos")
    ]
    assert all(one == keys[0] for one in keys)


def test_an_image_more_changes_one_unit_and_not_all_that_follow(tmp_path):
    content = layouts.images(400)
    path = layouts.folder(tmp_path / "photos", content)
    before = {unit.key for unit in plan([str(path)], 20).units}
    (path / "a" / "0007-new.png").write_bytes(content["a/0008.png"])
    after = [unit.key for unit in plan([str(path)], 20).units]
    assert len(before) > 10 and len(set(after) - before) <= 2
    (path / "b" / "0201.png").write_bytes(content["a/0008.png"])
    changed = {unit.key for unit in plan([str(path)], 20).units}
    assert len(changed - set(after)) == 1, "nor does one that changed"


def test_urls_are_opened_by_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    one, two = layouts.halves(CONTENT)
    for name, data in one.items():
        memory.pipe(f"/bucket/photos/{name}", data)
    memory.pipe("/bucket/more.tar", layouts.tarred(tmp_path / "more.tar", two).read_bytes())
    memory.pipe("/bucket/more.zip", layouts.zipped(tmp_path / "more.zip", two).read_bytes())
    sources = ["memory://bucket/photos", "memory://bucket/more.tar"]
    assert read(plan(sources, 10)) == CONTENT
    assert read(plan([sources[0], "memory://bucket/more.zip"], 10)) == CONTENT
    with pytest.raises(HandfulError, match="cannot find memory://bucket/none"):
        plan(["memory://bucket/none.tar"])
    with pytest.raises(HandfulError, match="cannot open nothing://x/y"):
        plan(["nothing://x/y.tar"])


# --- Hostile files


def ends(path):
    """The images of a single unit, and the sentence that it ends with."""
    (unit,), names = plan([str(path)]).units, []
    try:
        for item in unit_items(unit):
            names.append(item.name)
    except Damaged as error:
        return names, str(error)
    return names, None


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.77])
@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_truncated_tar_gives_what_is_before_the_cut(kind, cut, tmp_path):
    whole = layouts.tarred(tmp_path / f"x.{kind}", CONTENT, "w" if kind == "tar" else "w:gz")
    data = whole.read_bytes()
    whole.write_bytes(data[: int(cut * len(data))])
    names, problem = ends(whole)
    assert names == list(CONTENT)[: len(names)] and 0 < len(names) < len(CONTENT)
    assert problem is not None and problem.startswith(f"x.{kind} is damaged or cut off after {len(names)} images:")


def test_a_tar_that_is_cut_between_two_members_or_damaged_there_is_noticed(tmp_path):
    path = layouts.tarred(tmp_path / "x.tar", CONTENT)
    with tarfile.open(path) as archive:
        place = archive.getmembers()[20].offset
    data = path.read_bytes()
    path.write_bytes(data[:place])
    assert ends(path) == (list(CONTENT)[:10], "x.tar is damaged or cut off after 10 images: its end is missing")
    path.write_bytes(data[:place] + b"\1" * 512 + data[place + 512 :])
    assert ends(path)[0] == list(CONTENT)[:10] and "its end is missing" in ends(path)[1]


def test_names_that_lead_out_are_refused_in_all_layouts(tmp_path):
    content = {"../../evil.png": CONTENT["a/0000.png"], "a/0000.png": CONTENT["a/0000.png"]}
    paths = [layouts.zipped(tmp_path / "x.zip", content), layouts.tarred(tmp_path / "x.tar", content)]
    with suppress(ImportError):
        paths.append(layouts.parquet(tmp_path / "x.parquet", content))
    for path in paths:
        found = read(plan([str(path)]))
        assert found["a/0000.png"] == content["a/0000.png"]
        assert "has a path that leads out of the" in found["../../evil.png"]


def test_links_and_devices_in_a_tar_are_not_read(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)):
            member = tarfile.TarInfo(f"{number}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert list(read(plan([str(tmp_path / "x.tar")])).values()) == ["is a link", "is a link", "is not a plain file"]


def test_bombs_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_stream, "FREE_OF_RATIO", 1 << 20)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, size in (("a.png", 100), ("b.png", 8 << 20), ("c.png", 100)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    names, problem = ends(tmp_path / "x.tar.gz")
    assert names == ["a.png"] and "unpacks to far more than an archive of its size should" in problem
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(300 << 20))
    assert read(plan([str(tmp_path / "x.zip")])) == {"a.png": "more than 256 MiB"}


def test_a_parquet_bomb_is_left_alone(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow_files, "FREE_OF_RATIO", 1 << 20)
    zeros = {f"{number}.png": bytes([number]) * (1 << 20) for number in range(8)}
    path = layouts.parquet(tmp_path / "x.parquet", zeros, compression="zstd")
    assert ends(path) == ([], "x.parquet would unpack to 0.0 GiB in one row group: it was left there")


def test_tables_without_images_and_files_that_are_no_tables(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "x.parquet")
    with pytest.raises(HandfulError, match=r"x.parquet has no column of image files .*, only: a, b"):
        plan([str(tmp_path / "x.parquet")])
    sound = layouts.parquet(tmp_path / "sound.parquet", CONTENT)
    for name, data in (("y.parquet", b"PAR1 nonsense PAR1"), ("z.arrow", b"ARROW1 nonsense"), ("w.arrow", b"no")):
        (tmp_path / name).write_bytes(data)
        found = plan([str(tmp_path / name), str(sound)])
        assert f"{name} is not a Parquet or Arrow file, or a damaged one" in found.problems[str(tmp_path / name)]
        assert read(found) == CONTENT


def test_damage_inside_a_table_is_a_sentence(tmp_path):
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    for path in (
        layouts.parquet(tmp_path / "x.parquet", CONTENT),
        layouts.arrow(tmp_path / "y.arrow", CONTENT, stream=False),
        layouts.arrow(tmp_path / "z.arrow", CONTENT, stream=True),
    ):
        whole = path.read_bytes()
        for _ in range(40):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), 3):
                data[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(data))
            try:
                for unit in plan([str(path)], 1000).units:
                    for item in unit_items(unit):
                        item.name.encode(errors="surrogatepass")
            except HandfulError as error:
                assert "\n" not in str(error)


def test_columns_that_are_plain_bytes_and_rows_without_a_name(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data = [*CONTENT.values()][:3]
    pq.write_table(pa.table({"jpg": pa.array([*data, None], pa.binary())}), tmp_path / "x.parquet")
    numbered = {f"x/{number:09d}": content for number, content in enumerate([*data, "has no bytes in the file"])}
    assert read(plan([str(tmp_path / "x.parquet")])) == numbered
    pq.write_table(pa.table({"img": pa.array(data, pa.binary()), "file_name": ["p", "q", "r"]}), tmp_path / "y.parquet")
    assert list(read(plan([str(tmp_path / "y.parquet")]))) == ["p", "q", "r"]
