"""Registries that other installed packages can add to, by Python entry points; nothing of theirs is imported early.

The groups are ``handful.methods``, ``handful.datasets``, ``handful.embedders`` and ``handful.backbones``. In the
``pyproject.toml`` of such a package::

    [project.entry-points."handful.methods"]
    my-method = "my_package.my_method:MyMethod"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from .errors import HandfulError
from .progress import messages

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name: those of this package, then those of other packages, which are imported when asked for.

    Asking for a name that is registered twice, or for an entry that cannot be loaded, is an error; other names work as
    ever. Iterating loads all entries, and leaves out those that cannot be, with a message.

    Args:
        kind: what an entry is, in messages.
        own: the entries of this package.
        fault: what is wrong with a loaded object under this name, or nothing.
    """

    def __init__(self, kind: str, own: Mapping[str, T], fault: Callable[[str, Any], str | None]) -> None:
        self._kind, self._own, self._fault = kind, dict(own), fault
        self._group = f"handful.{kind.replace(' ', '')}s"

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in plugins(self._group)

    def __getitem__(self, name: str) -> T:
        found = plugins(self._group).get(name, ())
        owners = ["handful"] * (name in self._own) + [_distribution(entry) for entry in found]
        if len(owners) > 1:
            raise HandfulError(
                f"the {self._kind} '{name}' is registered by {' and by '.join(owners)}: uninstall all but one"
            )
        return self._load(name, found[0]) if found else self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        for name, found in plugins(self._group).items():
            if name in self._own:
                continue
            try:
                if len(found) == 1:
                    self._load(name, found[0])
            except HandfulError as error:
                _mention(str(error))
            else:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self, name: str, entry: EntryPoint) -> T:
        try:
            loaded: T = entry.load()  # imported once; Python keeps it
            fault = self._fault(name, loaded)
        except (Exception, SystemExit) as error:  # whatever foreign code may do
            first = (str(error).strip().splitlines() or [""])[0]
            fault = f"{type(error).__name__}: {first}"
        if fault:
            raise HandfulError(f"the {self._kind} '{name}' of the distribution {_distribution(entry)} fails: {fault}")
        return loaded


@functools.cache
def plugins(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name; reads what is installed, once, and imports none of it."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for entry in entry_points(group=group):  # a distribution may be found twice, in two folders of the path
        found.setdefault(entry.name, {})[_distribution(entry), entry.value] = entry
    return {name: tuple(found[name].values()) for name in sorted(found)}


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


@functools.cache
def _mention(sentence: str) -> None:
    """Say it once."""
    messages.print(f"left out: {sentence}", highlight=False, markup=False, soft_wrap=True)
