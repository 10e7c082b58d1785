"""The PostgreSQL functions in functions.sql, with a hash of the source in their names."""

import hashlib
import re

from sqlalchemy import Connection, func, select, text

from bot.storage.statements import PARAMETER, SERVER_CLOCK_SQL, SQL, Statement, read_sections

_INCLUDED_STATEMENT = re.compile(r"\{(\w+)([^{}]*)\}")
_SELECT_LOCK = select(func.pg_advisory_xact_lock(0x7472_6F75_7066))
_SELECT_EXISTING_FUNCTIONS = text("SELECT proname FROM pg_proc WHERE proname = ANY(:names)")


class PostgresFunction:
    """A database function, called troupe_<name>_<hash of its source>."""

    def __init__(self, name: str, source: str) -> None:
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        self.name = f"troupe_{name}_{digest}"
        self.definition = source.replace(f"troupe_{name}(", f"{self.name}(")
        parameters = source.partition("(")[2].partition(")")[0].split(",")
        parameter_types = {one.split()[0].removeprefix("_"): one.split()[1] for one in parameters}
        self.call = Statement(
            f"SELECT * FROM {self.name}({', '.join(f':{one}' for one in parameter_types)})",
            array_parameters={one for one, type_ in parameter_types.items() if type_ == "bytea[]"},
            table_parameters={one for one, type_ in parameter_types.items() if type_ == "json"},
        )
        """The statement that calls the function; values have the parameters' names without "_"."""


def _expand_included_statement(name: str, arguments: str) -> str:
    """Return the SQL of a named statement, with its parameters replaced by `arguments`."""
    prefix, expressions = "_", {"now": SERVER_CLOCK_SQL}
    for one in arguments.split():
        parameter, equals_sign, expression = one.partition("=")
        if equals_sign:
            expressions[parameter] = expression
        else:
            prefix = f"{one}."
    return PARAMETER.sub(lambda match: expressions.get(match[1], prefix + match[1]), SQL[name].text)


def _read_sql_functions() -> dict[str, PostgresFunction]:
    functions: dict[str, PostgresFunction] = {}
    for name, section in read_sections("functions.sql").items():
        if section.startswith("CREATE"):
            source = _INCLUDED_STATEMENT.sub(
                lambda match: _expand_included_statement(match[1], match[2]), section
            )
            for callee, function in functions.items():
                source = source.replace(f"troupe_{callee}(", f"{function.name}(")
            functions[name] = PostgresFunction(name, source)
    return functions


SQL_FUNCTIONS = _read_sql_functions()
"""All functions by name, ordered so that each follows the functions that it calls."""


def install_postgres_functions(connection: Connection) -> None:
    """Create the functions that do not exist yet.

    Functions of other versions stay, because processes of these versions may still call them.
    """
    name_values = {"names": [one.name for one in SQL_FUNCTIONS.values()]}
    existing_names = set(connection.execute(_SELECT_EXISTING_FUNCTIONS, name_values).scalars())
    missing_functions = [one for one in SQL_FUNCTIONS.values() if one.name not in existing_names]
    if missing_functions:
        connection.execute(_SELECT_LOCK)  # two processes cannot create the same function at once
        for one in missing_functions:
            connection.exec_driver_sql(one.definition)
