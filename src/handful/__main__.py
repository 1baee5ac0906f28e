"""``python -m handful`` is the ``handful`` command."""

from .cli import main

if __name__ == "__main__":
    main()
