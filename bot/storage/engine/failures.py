"""Describe why a database failed, without the values that were to be stored: people's words.

PostgreSQL repeats a whole row in the detail of an error ("Failing row contains ..."), and values in
the text of data exceptions (SQLSTATE class 22); asyncpg those that it cannot encode; SQLAlchemy all
that a statement was given.
"""

import re

from bot.errors import StoreError

_DATA_EXCEPTION = "22"
_ARGUMENT = re.compile(r"(query argument \$\d+): .*")


def describe_failure(error: BaseException) -> str:
    """Return one line: what the server or the driver says, or else the error's class."""
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith(_DATA_EXCEPTION):
        return f"{type(error).__name__} ({state})"
    line = str(error).strip().partition("\n")[0]
    return _ARGUMENT.sub(r"\1", line) or type(error).__name__


def to_store_error(error: BaseException) -> StoreError:
    """Make ours of a driver's error; to be raised `from None`, as its traceback has the values."""
    failure = StoreError(f"the database failed: {describe_failure(error)}")
    failure.sql_state = getattr(error, "sqlstate", None)
    return failure
