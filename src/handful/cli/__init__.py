"""The ``handful`` command: one file per command, each a thin wrapper that reads options, calls the library, prints."""

from .commands import app, main

__all__ = ["app", "main"]
