"""What can end a command early: bad input, a job that failed, a wish to stop."""

from typing import ClassVar


class HandfulError(ValueError):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence without a traceback and exits with ``exit_code``.
    """

    exit_code: ClassVar[int] = 2


class JobFailed(HandfulError):  # noqa: N818 - reads better
    """The input was sound, but the work did not succeed; also one sentence."""

    exit_code = 1


class Interrupted(Exception):  # noqa: N818 - not an error
    """Ctrl-C or SIGTERM: the work was asked to stop and has saved itself."""
