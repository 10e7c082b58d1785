"""What a database refuses is told without the values that were to be stored."""

import traceback
from collections.abc import Generator
from typing import Self

import asyncpg
import pytest
from sqlalchemy.exc import IntegrityError

from bot.errors import StoreError
from bot.storage.database import parse_url, translate
from bot.storage.postgres import PostgresPool
from bot.storage.statements import Rows, Statement, Unit, describe_failure

ROW = "Failing row contains (1, words of people)."
_ONE = Statement("SELECT 1")


def server_error(state: str, text: str, detail: str = "") -> asyncpg.PostgresError:
    fields = {"S": "ERROR", "C": state, "M": text, **({"D": detail} if detail else {})}
    error = asyncpg.PostgresError.new(fields)
    assert isinstance(error, asyncpg.PostgresError)
    return error


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (server_error("23514", "a check is violated", ROW), "a check is violated"),
        (
            server_error("22P02", 'invalid input syntax for type json: "words"'),
            "InvalidTextRepresentationError (22P02)",
        ),
        (
            asyncpg.InterfaceError("invalid input for query argument $5: 'words' (expected int)"),
            "invalid input for query argument $5",
        ),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_failure_is_described_without_values(error: Exception, described: str) -> None:
    assert describe_failure(error) == described
    by_sqlalchemy = IntegrityError("INSERT", {"text": "words"}, error)
    assert str(translate(by_sqlalchemy)) == f"the database failed: {described}"


class FailingConnection:
    """A connection, and its pool, on which every statement fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_terminated = False

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self

    def acquire(self) -> Self:
        return self

    async def release(self, *_: object, **_options: float) -> None:
        pass

    async def fetch(self, *_: object) -> Rows:
        raise self.error

    def terminate(self) -> None:
        self.is_terminated = True


def unit() -> Unit[int]:
    rows = yield _ONE.query_alone()
    return int(rows[0][0])


@pytest.mark.parametrize(
    ("error", "is_terminated"),
    [
        (server_error("23514", "a check is violated", ROW), False),
        (asyncpg.InternalClientError("another operation (2) is in progress"), True),
    ],
)
async def test_unit_fails_as_the_store_and_leaves_no_connection_that_has_lost_track(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_terminated: bool
) -> None:
    connection = FailingConnection(error)
    monkeypatch.setattr(asyncpg, "create_pool", lambda *_, **__: connection)
    with pytest.raises(StoreError) as failed:
        await PostgresPool(parse_url("postgresql://nowhere")).run(unit)
    assert "words" not in "".join(traceback.format_exception(failed.value))
    assert connection.is_terminated is is_terminated
