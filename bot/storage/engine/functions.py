"""PL/pgSQL functions: a unit of several statements in one round trip to PostgreSQL.

Each statement inside of a function sees what was committed before that statement began, as it would
in a transaction of round trips; a single statement with many CTEs would see only what was committed
before it waited for a lock.

Its statements have generic plans, so that a function always reads by the indexes that it was
tested with, whatever the server last counted in a table.

The name of a function ends with a hash of its text, so that processes of two versions can share a
database while they are replaced one after the other.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, bindparam, column, func, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from bot.storage.encryption.column_types import encoded_type
from bot.storage.engine.statements import Statement

Types: TypeAlias = Mapping[str, str | TypeEngine[Any]]
"""By name: a type as PostgreSQL spells it, or that of a column."""

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]

_PARAMETER = re.compile(r"\$(\d+)")
_LOCK = select(func.pg_advisory_xact_lock(0x7472_6F75_7066))
_EXISTING = text("SELECT proname FROM pg_proc WHERE proname = ANY(:names)")


class PostgresFunction:
    """A function in the database. Inside of it, parameters and variables begin with "_".

    Args:
        name: what it does.
        parameters: their types by name, without the "_".
        columns: the types of the rows that it returns, likewise; none: it returns nothing.
        variables: their types, likewise.
        body: what stands between BEGIN and END; `embed` writes statements into it.
    """

    def __init__(
        self,
        name: str,
        *,
        parameters: Types,
        columns: Types,
        variables: Types,
        body: str,
    ) -> None:
        returned = f"TABLE ({_declare(columns, ', ')})" if columns else "void"
        declared = "".join(f"    {one};\n" for one in _declare(variables, ";").split(";") if one)
        source = (
            f"({_declare(parameters, ', ')}) RETURNS {returned} LANGUAGE plpgsql "
            f"SET plan_cache_mode = force_generic_plan AS $function$\n"
            f"DECLARE\n{declared}BEGIN\n{body}\nEND\n$function$"
        )
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        self.name = f"troupe_{name}_{digest}"
        self.definition = f"CREATE OR REPLACE FUNCTION {self.name} {source}"
        listed = ", ".join(f":{one}" for one in parameters)
        call = text(f"SELECT * FROM {self.name}({listed})").bindparams(  # noqa: S608
            *(
                bindparam(one, type_=type_)
                for one, type_ in parameters.items()
                if not isinstance(type_, str) and encoded_type(type_)
            )
        )
        named = [
            column(one) if isinstance(type_, str) else column(one, type_)
            for one, type_ in columns.items()
        ]
        self.call = Statement(call.columns(*named) if named else call)
        """Takes the parameters by name; returns the rows."""


def embed(statement: Statement, **values: str) -> str:
    """Write a statement for the body of a function.

    A value `name` that it needs is the variable `_name`, or the expression that `values` gives.
    """
    sql = statement.compiled("postgresql")

    def replace(found: re.Match[str]) -> str:
        name = sql.names[int(found[1]) - 1]
        if name in values:
            return values[name]
        return _literal(sql.defaults[name]) if name in sql.defaults else f"_{name}"

    return _PARAMETER.sub(replace, sql.text)


def install(connection: Connection, functions: Sequence[PostgresFunction]) -> None:
    """Create the functions that the database does not have yet.

    Those of other versions stay: a process of that version may still call them.
    """
    asked = {"names": [one.name for one in functions]}
    existing = set(connection.execute(_EXISTING, asked).scalars())
    missing = [one for one in functions if one.name not in existing]
    if missing:
        connection.execute(_LOCK)  # two processes that replace one function at once fail
        for one in missing:
            connection.exec_driver_sql(one.definition)


def _declare(types: Types, separator: str) -> str:
    return separator.join(f"_{name} {spell(type_)}" for name, type_ in types.items())


def spell(type_: str | TypeEngine[Any]) -> str:
    """Return a type as PostgreSQL spells it."""
    return type_ if isinstance(type_, str) else type_.compile(_DIALECT)


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bool() | int() | float():
            return repr(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no SQL literal here")
