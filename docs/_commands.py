"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from handful.cli import app

DEFAULT = re.compile(r"\s*\[default: ([^]]*)\]")  # in the help of an option whose default depends on others


def reference() -> str:
    """Every command with its help and its options, in Markdown."""
    return "\n".join(_lines(get_command(app), ["handful"]))


def _lines(command: Any, path: list[str]) -> Iterator[str]:
    """Only attributes that Click has had since its first release are used: Typer's classes change between releases."""
    if len(path) > 1:
        yield f"{'#' * len(path)} `{' '.join(path)}`\n"
        yield f"{_prose(command.help)}\n"
    commands = getattr(command, "commands", {})
    for name in sorted(commands):
        yield from _lines(commands[name], [*path, name])
    if commands:
        return
    parameters = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [_argument(one) for one in parameters if not _is_option(one)]
    needed = [f"{one.opts[0]} {_value(one)}" for one in parameters if _is_option(one) and one.required]
    yield f"```console\n{' '.join([*path, *arguments, *needed])} [OPTIONS]\n```\n"
    if parameters:
        yield "| option | what it does | default |\n|---|---|---|"
        for one in parameters:
            told = DEFAULT.sub("", _prose(one.help))
            yield f"| {_cell(_names(one))} | {_cell(told)} | {_cell(_default(one))} |"
    yield ""


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _value(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper().replace("-", "_")


def _argument(parameter: Any) -> str:
    shown = _value(parameter).removesuffix("...").strip("[]") + ("..." if parameter.nargs == -1 else "")
    return shown if parameter.required else f"[{shown}]"


def _names(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"`{_argument(parameter)}`"
    value = "" if parameter.is_flag else f" {_value(parameter)}"
    return ", ".join(f"`{name}{value}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    default = parameter.default
    if told := DEFAULT.search(parameter.help or ""):
        return told[1]
    if parameter.required:
        return "required"
    if default is None or default is False or default == () or default == [] or callable(default):
        return ""
    if default is True:
        return f"`{parameter.opts[0]}`"
    values = default if isinstance(default, list | tuple) else [default]
    return ", ".join(f"`{getattr(value, 'value', value)}`" for value in values)


def _prose(text: str | None) -> str:
    """Help as Markdown: without Click's marks; words in angle brackets stay words."""
    cleaned = inspect.cleandoc(text or "").replace("\b", "").replace("\f", "")
    marked = re.sub(r"(?<![`\w-])(--[a-z][\w-]*)(?![^`\n]*`)", r"`\1`", cleaned)  # or it becomes a dash
    return re.sub(r"(?<!`)<(\w[\w -]*)>", r"\\<\1>", marked)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
