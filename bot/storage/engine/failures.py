"""Describe why a database failed, without the values that were to be stored: people's words.

PostgreSQL repeats a whole row in the detail of an error ("Failing row contains ..."), and values in
the text of data exceptions (SQLSTATE class 22); asyncpg those that it cannot encode.
"""

import re

_DATA_EXCEPTION = "22"
_ARGUMENT = re.compile(r"(query argument \$\d+): .*")


def describe_failure(error: BaseException) -> str:
    """Return one line: what the server or the driver says, or else the error's class."""
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith(_DATA_EXCEPTION):
        return f"{type(error).__name__} ({state})"
    line = str(error).strip().partition("\n")[0]
    return _ARGUMENT.sub(r"\1", line) or type(error).__name__
