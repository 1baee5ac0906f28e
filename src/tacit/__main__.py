"""``python -m tacit`` is the ``tacit`` command."""

from .cli import main

main()
