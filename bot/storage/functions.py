"""The PostgreSQL functions in functions.sql, with a hash of the source in their names."""

import hashlib
import re

from sqlalchemy import Connection, func, select, text

from bot.storage.statements import PARAMETER, SERVER_CLOCK, SQL, Statement, read_sections

_INCLUDED_STATEMENT = re.compile(r"\{(\w+)([^{}]*)\}")
_INSTALL_LOCK = select(func.pg_advisory_xact_lock(0x7472_6F75_7066))
_SELECT_EXISTING = text("SELECT proname FROM pg_proc WHERE proname = ANY(:names)")


class PostgresFunction:
    """A database function, called troupe_<name>_<hash of its source>."""

    def __init__(self, name: str, source: str) -> None:
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        self.name = f"troupe_{name}_{digest}"
        self.definition = source.replace(f"troupe_{name}(", f"{self.name}(")
        parameters = source.partition("(")[2].partition(")")[0].split(",")
        types = {one.split()[0].removeprefix("_"): one.split()[1] for one in parameters}
        self.call = Statement(
            f"SELECT * FROM {self.name}({', '.join(f':{one}' for one in types)})",
            lists={one for one, type_ in types.items() if type_ == "bytea[]"},
            tables={one for one, type_ in types.items() if type_ == "json"},
        )
        """The statement that calls the function; values have the parameters' names without "_"."""


def _expand_included(name: str, arguments: str) -> str:
    """Return the SQL of a named statement, with its parameters replaced by `arguments`."""
    record, values = "_", {"now": SERVER_CLOCK}
    for one in arguments.split():
        value, is_value, expression = one.partition("=")
        if is_value:
            values[value] = expression
        else:
            record = f"{one}."
    return PARAMETER.sub(lambda found: values.get(found[1], record + found[1]), SQL[name].text)


def _read_functions() -> dict[str, PostgresFunction]:
    functions: dict[str, PostgresFunction] = {}
    for name, section in read_sections("functions.sql").items():
        if section.startswith("CREATE"):
            source = _INCLUDED_STATEMENT.sub(
                lambda found: _expand_included(found[1], found[2]), section
            )
            for callee, function in functions.items():
                source = source.replace(f"troupe_{callee}(", f"{function.name}(")
            functions[name] = PostgresFunction(name, source)
    return functions


FUNCTIONS = _read_functions()
"""All functions by name, ordered so that each follows the functions that it calls."""


def install_functions(connection: Connection) -> None:
    """Create the functions that do not exist yet.

    Functions of other versions stay, because processes of these versions may still call them.
    """
    names = {"names": [one.name for one in FUNCTIONS.values()]}
    existing = set(connection.execute(_SELECT_EXISTING, names).scalars())
    missing = [one for one in FUNCTIONS.values() if one.name not in existing]
    if missing:
        connection.execute(_INSTALL_LOCK)  # two processes cannot create the same function at once
        for one in missing:
            connection.exec_driver_sql(one.definition)
