"""Parquet and Arrow files with a column of image files, as Hugging Face's ``datasets`` writes them.

The column is a struct of ``bytes`` and ``path``, or binary. The files may be hostile: sizes are checked before anything
is unpacked, few rows are unpacked at a time, and what Arrow reads is validated before it is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from ..errors import HandfulError
from .base import Item
from .files import leads_out
from .images import MOST_BYTES, printable
from .remote import is_url, last_name, opened
from .stream_items import Damaged, ready, refused

ENDINGS = (".parquet", ".arrow")
NO_PYARROW = "Parquet and Arrow files are read by pyarrow, which is not installed: pip install 'handful[shards]'"
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
NAME_COLUMNS = ("path", "file_name", "filename", "name", "image_path", "__key__", "key", "id")
MOST_UNPACKED = 4 << 30  # bytes of the images of one row group
MOST_RATIO, FREE_OF_RATIO = 200, 1 << 28  # image files hardly compress, once there are many of them
AT_ONCE = 1 << 30  # bytes that the rows of one read may have at most
MOST_ROWS = 64  # of one read
_MOST_THRIFT = 1 << 27  # bytes of the description of a Parquet file


class Columns(NamedTuple):
    """Where the images and their names are; ``inner`` for a struct of bytes and path."""

    image: str
    inner: bool
    name: str | None


def row_groups(place: str) -> list[int]:
    """The rows of each row group of a Parquet file, or of each batch of an Arrow file; checks its columns.

    Raises:
        Damaged: if it is none, or has no images in it.
    """
    arrow = _arrow()
    with _explained(place), opened(place) as file:
        if place.lower().endswith(".parquet"):
            content = _parquet(file)
            _columns(content.schema_arrow, place, arrow)
            return [content.metadata.row_group(number).num_rows for number in range(content.metadata.num_row_groups)]
        reader, count = _ipc(file, place, arrow)
        _columns(reader.schema, place, arrow)
        # A stream does not say how many rows it has before it was read.
        return [-1] if count is None else [reader.get_batch(number).num_rows for number in range(count)]


def arrow_items(place: str, start: int, stop: int | None, first: int, skip: int = 0) -> Iterator[Item]:
    """The images of some row groups or batches, but the first ``skip``; ``first`` is the number of their first row."""
    arrow, seen = _arrow(), 0
    stem = PurePosixPath(last_name(place)).stem
    with _explained(place), opened(place) as file:
        for batch, columns in _batches(file, place, start, stop, arrow):
            batch.validate(full=True)  # offsets of a hostile file may point anywhere
            for row in range(batch.num_rows):
                seen += 1
                if seen > skip:
                    yield _item(batch, row, columns, f"{stem}/{first + seen - 1:09d}")


def _batches(file: IO[bytes], place: str, start: int, stop: int | None, arrow: Any) -> Iterator[tuple[Any, Columns]]:
    if not place.lower().endswith(".parquet"):
        reader, count = _ipc(file, place, arrow)
        columns = _columns(reader.schema, place, arrow)
        numbers = range(start, stop or 0) if stop is not None else range(start, count or 0)
        for batch in reader if count is None else map(reader.get_batch, numbers):
            yield batch, columns
        return
    content = _parquet(file)
    columns = _columns(content.schema_arrow, place, arrow)
    wanted = [columns.image] if columns.name is None else [columns.image, columns.name]
    for number in range(start, content.metadata.num_row_groups if stop is None else stop):
        size = _unpacked(content.metadata.row_group(number), columns.image, place)
        # One value may be as large as all of them together, and one stored value may be that of all rows.
        rows = max(1, min(MOST_ROWS, AT_ONCE // max(1, min(size, MOST_BYTES))))
        for batch in content.iter_batches(rows, row_groups=[number], columns=wanted, use_threads=False):
            yield batch, columns


def _unpacked(group: Any, column: str, place: str) -> int:
    """The bytes of a row group's images once they are unpacked."""
    packed = size = 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.partition(".")[0] == column:
            packed, size = packed + chunk.total_compressed_size, size + chunk.total_uncompressed_size
    if size > MOST_UNPACKED or size > max(FREE_OF_RATIO, MOST_RATIO * packed):
        raise Damaged(
            f"{printable(last_name(place))} would unpack to {size / 2**30:.1f} GiB in one row group: it was left there"
        )
    return int(size)


def _item(batch: Any, row: int, columns: Columns, numbered: str) -> Item:
    value, name = batch.column(columns.image)[row], None
    if columns.name is not None:
        name = batch.column(columns.name)[row].as_py()
    if columns.inner and value.is_valid:
        path = value["path"] if "path" in value.type.names else None
        name = name if path is None or not path.is_valid else path.as_py()
        value = value["bytes"]
    shown = name.lstrip("/") if isinstance(name, str) and name.strip("/") else numbered
    if leads_out(shown):
        return refused(shown, "has a path that leads out of the file")
    if not value.is_valid:
        return refused(shown, "has no bytes in the file")
    content = value.as_buffer()
    if content.size > MOST_BYTES:
        return refused(shown, f"more than {MOST_BYTES >> 20} MiB")
    return ready(shown, content.to_pybytes())


def _columns(schema: Any, place: str, arrow: Any) -> Columns:
    kinds = arrow.types

    def is_bytes(kind: Any) -> bool:
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    def is_text(kind: Any) -> bool:
        return bool(kinds.is_string(kind) or kinds.is_large_string(kind))

    structs = [
        field.name for field in schema
        if kinds.is_struct(field.type) and any(one.name == "bytes" and is_bytes(one.type) for one in field.type)
    ]  # fmt: skip
    plain = [field.name for field in schema if is_bytes(field.type)]
    image = next((name for name in IMAGE_COLUMNS if name in (*structs, *plain)), next(iter([*structs, *plain]), None))
    if image is None:
        names = ", ".join(printable(str(field.name)) for field in list(schema)[:8])
        raise Damaged(
            f"{printable(last_name(place))} has no column of image files (binary, or a struct with 'bytes'), only: "
            f"{names[:200]}"
        )
    texts = [field.name for field in schema if is_text(field.type)]
    name = next((column for column in NAME_COLUMNS if column in texts), None)
    return Columns(image, image in structs, name)


def _parquet(file: IO[bytes]) -> Any:
    parquet: Any = import_module("pyarrow.parquet")
    return parquet.ParquetFile(
        file, pre_buffer=False, thrift_string_size_limit=_MOST_THRIFT, thrift_container_size_limit=_MOST_THRIFT >> 4
    )


def _ipc(file: IO[bytes], place: str, arrow: Any) -> tuple[Any, int | None]:
    """A reader of an Arrow file, and how many batches it has; None for a stream, as ``datasets`` keeps them."""
    whole = file.read(6) == b"ARROW1"
    file.seek(0)
    source = file if is_url(place) else arrow.memory_map(place)
    if whole:
        reader = arrow.ipc.open_file(source)
        return reader, reader.num_record_batches
    return arrow.ipc.open_stream(source), None


class _explained:  # noqa: N801 - a context
    """What pyarrow says of a damaged file, in one sentence."""

    def __init__(self, place: str) -> None:
        self._name = printable(last_name(place))

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or isinstance(error, HandfulError | GeneratorExit | KeyboardInterrupt | MemoryError):
            return
        if isinstance(error, OSError) and error.errno is not None:  # of the disk or the network
            return
        lines = str(error).strip().splitlines()
        why = printable(lines[0])[:160] if lines else type(error).__name__
        raise Damaged(f"{self._name} is not a Parquet or Arrow file, or a damaged one: {why}") from error


def _arrow() -> Any:
    try:
        arrow: Any = import_module("pyarrow")
        import_module("pyarrow.ipc")
    except ImportError as error:
        raise HandfulError(NO_PYARROW) from error
    return arrow
