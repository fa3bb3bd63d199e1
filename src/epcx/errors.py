"""The one exception that users see as a sentence instead of a traceback."""


class InputError(ValueError):
    """Bad input: the message is one sentence that names the value and what is allowed."""
