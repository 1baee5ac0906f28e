"""``python -m tacit`` is the ``tacit`` command."""

from .cli import main

if __name__ == "__main__":
    main()
