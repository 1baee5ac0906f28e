"""``module:callable``: a function of the user's own, and a hash of its code, under which its vectors are kept.

The function takes images (n, size, size, 3) uint8 and gives vectors (n, dim). It may have attributes ``image_size``
(224 if not), ``channels`` (3) and ``version``, which stands for all that code does not show, as weights that it reads
from a file: change it when they change.

The hash covers the file of the module and those of all modules that it imports, directly or not, as far as they are the
user's: neither of Python nor installed. A module that is installed counts with its whole distribution. Where the code
that runs is not known, the vectors are not kept, and a line says so: if it has no file, or if the module had been
imported before handful saw it, as its file may have changed since.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..datasets.images import printable
from ..errors import HandfulError
from ..progress import messages
from .base import reason
from .external import Function


class Unknown(Exception):  # noqa: N818 - not an error
    """The code behind a function cannot be determined; the message says why."""


@dataclass
class _Loaded:
    """A module of the user's as it was when handful saw it loaded.

    Attributes:
        spec: of the import, a new object whenever the module is imported or reloaded; None if it had not been yet.
        digest: of its file.
        imports: names that may be modules.
    """

    spec: ModuleSpec | None
    digest: str
    imports: list[str]


_LOADED: dict[str, _Loaded] = {}


def own(module: str, attribute: str) -> Function:
    """Load ``module:callable``, from Python's module path or the current folder."""
    name = printable(f"{module}:{attribute}")
    if not all(module.split(".")) or not attribute or "." in attribute:
        raise HandfulError(f"'{name}' names no embedder: write module:callable, for a function at the top of a module")
    with suppress(OSError):  # the current folder may be gone
        if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path is of strings
            sys.path.append(here)
    before = set(sys.modules)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module may do
        raise HandfulError(f"cannot import the embedder {name}: {reason(error)}") from error
    with suppress(Unknown):
        list(_files({module}, {module}, before))  # they were loaded just now, and may be edited before the next call
    try:
        function = getattr(found, attribute)
        settings = {key: getattr(function, key) for key in ("image_size", "channels") if hasattr(function, key)}
        version = getattr(function, "version", "")
    except AttributeError:
        raise HandfulError(f"the module {printable(module)} has no '{printable(attribute)}'") from None
    except Exception as error:
        raise HandfulError(f"the embedder {name} fails: {reason(error)}") from error
    if not callable(function):
        raise HandfulError(f"the embedder {name} is no function but of the type {type(function).__name__}")
    if not isinstance(version, str | int | float):
        raise HandfulError(f"the embedder {name} has as version a {type(version).__name__}: use text or a number")
    try:
        key = f"{name}-{version}-{_code(module, function, before)}"
    except Unknown as why:
        key = ""
        messages.print(f"the vectors of {name} are not kept: {why}", highlight=False, markup=False, soft_wrap=True)
    return Function(name, key, function, **settings)


def _code(module: str, function: Any, before: set[str]) -> str:
    """A hash of the code behind a callable of a module; ``before``: the modules that were imported before it."""
    homes = {module, *_homes(function)}
    for home in sorted(homes):
        spec = _spec(home)
        if spec is None or (home == module and not spec.has_location):
            raise Unknown(f"{home} has no file whose code could be compared")
    spec = _spec(module)
    assert spec is not None and spec.origin is not None
    # The folder too: in another one, the same code may read other weights.
    digest = hashlib.sha256(str(Path(spec.origin).resolve().parent).encode(errors="surrogatepass"))
    if _is_installed(spec):
        digest.update(_distribution(module).encode())
    for name, digest_of_file in sorted(_files(homes, {module}, before)):
        digest.update(f"{name} {digest_of_file}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def _homes(function: Any) -> Iterator[str]:
    """Modules in which parts of a callable are defined: a function, the class of an instance, what a partial calls."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _homes(part)
    kinds = function.__mro__ if isinstance(function, type) else type(function).__mro__
    for part in (function, getattr(function, "__wrapped__", None), *kinds):
        if isinstance(home := getattr(part, "__module__", None), str):
            yield home


def _files(names: set[str], always: set[str], before: set[str]) -> Iterator[tuple[str, str]]:
    """The user's modules among these and all that they import, and a hash of the file of each."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        # The packages that it is in are run before it.
        for part in {name, *(name[:place] for place, letter in enumerate(name) if letter == ".")} - seen:
            seen.add(part)
            spec = _spec(part)
            if spec is not None and (part in always or not _is_installed(spec)):
                loaded = _loaded(part, spec, part in before)
                if loaded is not None:
                    waiting += loaded.imports
                    yield part, loaded.digest


def _loaded(name: str, spec: ModuleSpec, was_there: bool) -> _Loaded | None:
    """The record of a module from when it was first seen, or a new one; None if it has no file."""
    if not spec.has_location or spec.origin is None:
        return None  # a package without a file of its own
    known = _LOADED.get(name)
    if known is not None and known.spec is spec:
        return known
    content = _content(spec)
    fresh = _Loaded(spec if name in sys.modules else None, hashlib.sha256(content).hexdigest(), _imports(spec, content))
    seen_before_import = known is not None and known.spec is None and known.digest == fresh.digest
    if was_there and not seen_before_import:
        raise Unknown(f"{name} had been imported before handful did so, and {spec.origin} may have changed since")
    _LOADED[name] = fresh
    return fresh


def _content(spec: ModuleSpec) -> bytes:
    try:
        return bytes(spec.loader.get_data(spec.origin))  # type: ignore[union-attr]  # also out of an archive
    except (AttributeError, OSError) as error:
        raise Unknown(f"{spec.origin} cannot be read") from error


def _imports(spec: ModuleSpec, content: bytes) -> list[str]:
    """All names imported anywhere in a module's source: modules, and attributes of modules."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # compiled
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = (spec.parent or "").split(".")
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            whole = ".".join(part for part in (base, node.module) if part)
            names += [whole, *(f"{whole}.{alias.name}" for alias in node.names)]
    return names


def _spec(name: str) -> ModuleSpec | None:
    """The import spec of a module, found without importing it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    package, _, _ = name.rpartition(".")
    try:
        if not package:
            return importlib.util.find_spec(name)
        up = _spec(package)
        places = None if up is None or _is_installed(up) else up.submodule_search_locations
        return None if places is None else PathFinder.find_spec(name, list(places))
    except (ImportError, ValueError, OSError):
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether a module belongs to Python, to handful or to an installed package, rather than to the user."""
    if spec.name.partition(".")[0] == __name__.partition(".")[0] or spec.origin in ("built-in", "frozen"):
        return True
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
    standard = [Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")]
    return any(
        {"site-packages", "dist-packages"} & set(Path(place).parts)
        or any(Path(place).resolve().is_relative_to(folder) for folder in standard)
        for place in places
        if place is not None
    )


def _distribution(module: str) -> str:
    """Identify the code of an installed package: by its list of files with their hashes, or by its version."""
    for name in metadata.packages_distributions().get(module.partition(".")[0], []):
        found = metadata.distribution(name)
        return found.read_text("RECORD") or f"{name} {found.version}"
    if module.partition(".")[0] in sys.stdlib_module_names:
        return sys.version
    raise Unknown(f"{module} is beside the installed packages, and in none of them")
