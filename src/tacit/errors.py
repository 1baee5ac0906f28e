"""The one error a user can cause."""


class TacitError(ValueError):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence without a traceback and exits with 2.
    """
