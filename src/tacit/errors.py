"""The one error a user can cause, and the one wish."""


class TacitError(ValueError):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence without a traceback and exits with 2.
    """


class Interrupted(Exception):  # noqa: N818 - not an error
    """Ctrl-C or SIGTERM: the work was asked to stop and has saved itself."""
