"""Read the pickles in which data sets are distributed, without executing them.

A pickle is a program. Python's own `pickle` executes it; this reader knows only the instructions that build numbers,
strings, lists, tuples, dicts and numpy arrays, and refuses everything else by name. What looks like a call (arrays are
written as calls of numpy's functions) is looked up in a table of our own (`pickle_calls.py`). Long strings are
not copied: they stay in the memory-mapped file, so that gigabytes of images need no memory.
"""

from __future__ import annotations

import codecs
import mmap
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..errors import HandfulError
from .images import printable
from .pickle_calls import CALLS, NAMES, Array, Damaged, Dtype, Global, Refused, make_array, name_text, text

__all__ = ["load_pickle", "text", "text_keys"]

MOST_STEPS = 100_000_000  # instructions of one file: the 448,695 images of tieredImageNet take about 15 million
_INT32, _UINT8, _UINT16, _UINT32, _UINT64 = (struct.Struct(f"<{code}") for code in "iBHIQ")
_LONG = 1 << 10  # strings from here on stay in the file


class _Mark:
    """Where a list of operands begins on the stack."""


def load_pickle(path: Path) -> Any:
    """The content of a pickle of plain containers and arrays.

    Text of Python 2 comes as bytes; bytes of 1 KiB and more come as memory views of the file.

    Raises:
        HandfulError: if the pickle holds anything else, or is damaged.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise HandfulError(f"cannot read {path}: {error}") from error
    return run_machine(Machine(data), path)


def run_machine(machine: Machine, path: Path) -> Any:
    """What a machine makes of its file; whatever is wrong with it is one sentence."""
    try:
        return machine.run()
    except Refused as error:
        raise HandfulError(
            f"{path} is refused: it holds {printable(str(error))}, and only arrays and plain containers are read"
        ) from None
    except Damaged as error:
        raise HandfulError(f"{path} is damaged or no pickle: {error} at byte {machine.at}") from None
    # What a damaged pickle does to the machine below: pops an empty stack, misses a memo, hashes a list, ...
    except (IndexError, KeyError, TypeError, ValueError, struct.error, OverflowError, MemoryError) as error:
        raise HandfulError(f"{path} is damaged or no pickle ({type(error).__name__} at byte {machine.at})") from error


def text_keys(value: Any) -> dict[Any, Any]:
    """A dict whose keys are text, whatever Python wrote it; an empty one if it is no dict."""
    return {text(key): entry for key, entry in value.items()} if isinstance(value, dict) else {}


class Machine:
    """The stack machine of the pickle format, without the instructions that could run something."""

    calls: ClassVar[Mapping[str, Callable[..., Any]]] = CALLS  # what may look like a call, by its name
    names: ClassVar[Collection[str]] = NAMES  # what else may be named

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data, self.at = data, at
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self) -> Any:
        for _ in range(MOST_STEPS):
            if self.at >= len(self.data):
                raise Damaged("the file ends too early")
            code = self.data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1:
                    raise Damaged("the end comes too early")
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                if code in _REFUSED:
                    raise Refused(_REFUSED[code])
                raise Damaged(f"there is no instruction {code}")
            step(self)
        raise Refused(f"more than {MOST_STEPS:,} instructions")

    def take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise Damaged("the file ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: struct.Struct) -> int:
        number: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return number

    def line(self) -> bytes:
        start, block = self.at, 1 << 12
        while True:  # in growing blocks: a line may be one number or a whole image
            found = bytes(self.data[self.at : self.at + block])
            end = found.find(b"\n")
            self.at += len(found) if end < 0 else end + 1
            if end >= 0:
                return bytes(self.data[start : self.at - 1])
            if not found:
                raise Damaged("the file ends too early")
            block = min(2 * block, 1 << 24)

    def raw(self, count: int) -> bytes | memoryview:
        found = self.take(count)
        return found if count >= _LONG else bytes(found)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _Mark:
            raise Damaged("an operand is missing")
        return value

    def operands(self) -> list[Any]:
        """All that lies on the stack above the last mark."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _Mark:
                found = self.stack[index + 1 :]
                del self.stack[index:]
                return found
        raise Damaged("a mark is missing")

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Damaged(f"no {kind.__name__} where one should be")
        return self.stack[-1]

    def remember(self, key: int) -> None:
        if isinstance(self.stack[-1], Array):
            self.stack[-1].memo = key
        self.memo[key] = self.stack[-1]

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def update(self, pairs: list[Any]) -> None:
        _dict(self.top(dict), pairs)

    def collect(self, kind: type) -> None:
        self.push(kind(self.operands()))

    def pack(self, count: int) -> None:
        parts = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(parts)))

    def instance(self) -> None:
        name = f"{name_text(self.line())}.{name_text(self.line())}"
        raise Refused(f"an instance of '{name}'")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Damaged("a call of nothing")
        if function.name not in self.calls:
            raise Refused(f"a call of '{function.name}'")
        made = self.calls[function.name](*arguments)
        self.copy(len(made) if isinstance(made, bytes | str) else 0)
        self.push(made)

    def copy(self, count: int) -> None:
        """Calls may not make more than the file holds: each could make a megabyte of what was written once."""
        self.copied += count
        if self.copied > len(self.data):
            raise Refused("calls that make more than the file holds")

    def name(self, module: Any, name: Any) -> None:
        """A function or class that is named."""
        full = f"{name_text(module)}.{name_text(name)}"
        if full not in self.calls and full not in self.names:
            raise Refused(f"'{full}'")
        self.push(Global(full))

    def refer(self) -> None:
        """A persistent id: what it stands for is elsewhere, if anybody knows where."""
        raise Refused("a persistent id")

    def build(self) -> None:
        """Give the object on the stack its state: an array its elements, a dtype its byte order."""
        state, target = self.pop(), self.pop()
        if not isinstance(state, tuple):
            raise Damaged("a state that is no tuple")
        if isinstance(target, Dtype):
            order = name_text(state[1])
            if order not in ("<", ">", "|", "=") or state[2] is not None or state[3] is not None:
                raise Refused("an array of a structured type")
            target.order = order
            self.push(target)
        elif isinstance(target, Array):
            _, shape, dtype, columns_first, elements = state
            array = make_array(elements, dtype, shape, "F" if columns_first else "C")
            self.copy(array.size if array.dtype == object else 0)
            if target.memo is not None:
                self.memo[target.memo] = array
            self.push(array)
        else:
            raise Refused(f"a state for a {type(target).__name__}")


def _dict(target: dict[Any, Any], pairs: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn into a dict. Keys are scalars: to hash a tuple of tuples can take for ever."""
    if len(pairs) % 2:
        raise Damaged("a key has no value")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not isinstance(key, str | bytes | int | float | None):
            raise Refused(f"a {type(key).__name__} as a key")
        if isinstance(key, int) and abs(key) >= 1 << 63:  # large numbers can be chosen so that all collide in a dict
            raise Refused("a number of more than 64 bits as a key")
        target[key] = value
    return target


def _integer(line: bytes) -> Any:
    if line in (b"00", b"01"):  # how the oldest protocol writes a truth value
        return line == b"01"
    if len(line) > 40:
        raise Refused(f"a number of {len(line)} digits")
    return int(line.rstrip(b"L"))


def _place(line: bytes) -> int:
    if len(line) > 10:
        raise Damaged("a place in the memo that is none")
    return int(line)


def _quoted(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise Damaged("a string without quotes")
    return codecs.escape_decode(line[1:-1])[0]


def _big(machine: Machine, count: int) -> int:
    if count > 16:
        raise Refused(f"a number of {count} bytes")
    return int.from_bytes(machine.take(count), "little", signed=True)


def _string(machine: Machine, form: struct.Struct) -> str:
    return str(machine.take(machine.number(form)), "utf-8", "surrogatepass")


_STEPS: dict[int, Callable[[Machine], Any]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    ord("("): lambda m: m.push(_Mark),
    ord("0"): lambda m: m.stack.pop(),  # POP
    ord("1"): lambda m: m.operands(),  # POP_MARK
    ord("2"): lambda m: m.push(m.stack[-1]),  # DUP
    # values
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(_integer(m.line())),
    ord("L"): lambda m: m.push(_integer(m.line())),
    ord("J"): lambda m: m.push(m.number(_INT32)),
    ord("K"): lambda m: m.push(m.number(_UINT8)),
    ord("M"): lambda m: m.push(m.number(_UINT16)),
    0x8A: lambda m: m.push(_big(m, m.number(_UINT8))),
    0x8B: lambda m: m.push(_big(m, m.number(_INT32))),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    # strings: of Python 2, bytes, text
    ord("S"): lambda m: m.push(_quoted(m.line())),
    ord("T"): lambda m: m.push(m.raw(m.number(_INT32))),
    ord("U"): lambda m: m.push(m.raw(m.number(_UINT8))),
    ord("B"): lambda m: m.push(m.raw(m.number(_UINT32))),
    ord("C"): lambda m: m.push(m.raw(m.number(_UINT8))),
    0x8E: lambda m: m.push(m.raw(m.number(_UINT64))),
    0x96: lambda m: m.push(m.raw(m.number(_UINT64))),  # BYTEARRAY8
    ord("V"): lambda m: m.push(str(m.line(), "raw-unicode-escape")),
    ord("X"): lambda m: m.push(_string(m, _UINT32)),
    0x8C: lambda m: m.push(_string(m, _UINT8)),
    0x8D: lambda m: m.push(_string(m, _UINT64)),
    # containers
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("}"): lambda m: m.push({}),
    ord("l"): lambda m: m.collect(list),
    ord("t"): lambda m: m.collect(tuple),
    ord("d"): lambda m: m.push(_dict({}, m.operands())),
    0x85: lambda m: m.pack(1),
    0x86: lambda m: m.pack(2),
    0x87: lambda m: m.pack(3),
    ord("a"): lambda m: m.extend([m.pop()]),
    ord("e"): lambda m: m.extend(m.operands()),
    ord("s"): lambda m: m.update([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.update(m.operands()),
    # the memo
    ord("p"): lambda m: m.remember(_place(m.line())),
    ord("q"): lambda m: m.remember(m.number(_UINT8)),
    ord("r"): lambda m: m.remember(m.number(_UINT32)),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("g"): lambda m: m.push(m.memo[_place(m.line())]),
    ord("h"): lambda m: m.push(m.memo[m.number(_UINT8)]),
    ord("j"): lambda m: m.push(m.memo[m.number(_UINT32)]),
    # names, calls, states: see CALLS
    ord("c"): lambda m: m.name(m.line(), m.line()),
    0x93: lambda m: m.name(*[m.pop(), m.pop()][::-1]),
    ord("i"): lambda m: m.instance(),
    ord("R"): lambda m: m.call(),
    ord("b"): lambda m: m.build(),
    ord("Q"): lambda m: m.refer(),
}
_REFUSED = {
    ord("P"): "a persistent id", ord("o"): "an instance of a class",
    0x81: "an instance of a class", 0x92: "an instance of a class",
    0x82: "an extension code", 0x83: "an extension code", 0x84: "an extension code", 0x8F: "a set", 0x90: "a set",
    0x91: "a set", 0x97: "a buffer outside of the file", 0x98: "a buffer outside of the file",
}  # fmt: skip
