"""The units of a message as functions of PostgreSQL: one round trip and one transaction each.

Each does what the unit of the same name does step by step on SQLite, by the same statements, which
are embedded in PL/pgSQL.

Waiting for the disk is the largest cost of a commit. If a crash of the server may undo a unit
without harm, its commit does not wait: a lost claim is fenced, and a row that may have been sent is
reconciled.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sqlalchemy import Connection, func, select, text

from bot.storage import conversation_sql, lane_sql
from bot.storage.statements import SERVER_CLOCK, Statement

Types: TypeAlias = Mapping[str, str]
"""By name."""

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
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
        self.call = Statement(
            f"SELECT * FROM {self.name}({', '.join(f':{one}' for one in parameters)})",
            lists={one for one, type_ in parameters.items() if type_ == "bytea[]"},
            tables={one for one, type_ in parameters.items() if type_ == "json"},
        )
        """Takes the parameters by name; returns the rows."""


def embed(statement: Statement, **values: str) -> str:
    """Write a statement for the body of a function.

    A value `name` that it needs is the variable `_name`, or the expression that `values` gives.
    """
    known = {"now": SERVER_CLOCK, **values}
    return _PARAMETER.sub(lambda found: known.get(found[1], f"_{found[1]}"), statement.text)


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
    return separator.join(f"_{name} {type_}" for name, type_ in types.items())


_FLOAT = "double precision"


def _types(columns: Sequence[str], **others: str) -> dict[str, str]:
    """Return the types of columns: text, unless another one is given."""
    return {name: others.get(name, "text") for name in columns}


def _range(name: str) -> dict[str, str]:
    return {"of_session": "_session", "count": f"_{name}_count", "newer": f"_{name}_newer"}


def _record(types: Types) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


_COMMIT_WITHOUT_WAITING = "PERFORM set_config('synchronous_commit', 'off', true)"

_HEAD_TYPES = {
    f"head_{name}": type_
    for name, type_ in _types(
        lane_sql.HEAD_COLUMNS,
        id="bigint",
        part="int",
        attempts="int",
        not_before=_FLOAT,
        started_at=_FLOAT,
    ).items()
}
_MESSAGE_TYPES = {
    "id": "bigint",
    "payload": "bytea",
    "crashes": "int",
    "own_crashes": "int",
    "kind": "text",
    "received_at": _FLOAT,
    "is_followed": "boolean",
}
_NEXT_MESSAGE = ", ".join(f"_{name}" for name in _MESSAGE_TYPES)
_CLAIM = {"of": "text", "at_epoch": "bigint", "claimed_by": "text"}
_IDENTITY = {"sender": "text", "settle": _FLOAT}
_ROW_TYPES = _types(lane_sql.OUTBOX_ROW, part="int")
_TURN_TYPES = _types(
    conversation_sql.TURN_ROW,
    at=_FLOAT,
    preset_version="int",
    observed="boolean",
    active="boolean",
)
_USAGE_TYPES = _types(
    conversation_sql.USAGE_ROW,
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens", "cost"), "bigint"),
)
_CHANGE_TYPES = {
    **{name: _ROW_TYPES[name] for name in ("part", "op", "text", "interaction")},
    **{name: _ROW_TYPES[name] for name in ("file_name", "file_text", "face", "buttons")},
    "opened": "boolean",
}
_HEAD_RECORD = ", ".join(f"_head.{name}" for name in lane_sql.HEAD_COLUMNS)
_GIVE_HEAD = "; ".join(f"_head_{name} := _head.{name}" for name in lane_sql.HEAD_COLUMNS)
_BEGIN_HEAD = PostgresFunction(
    "begin_head",
    parameters={"of": "text", **_IDENTITY, "leased": _FLOAT},
    columns=_HEAD_TYPES,
    variables={"head": "record", "at": _FLOAT, "moment": _FLOAT},
    body=f"""
SELECT * INTO _head FROM ({embed(lane_sql.HEAD)}) AS found;
IF NOT FOUND THEN
    {embed(lane_sql.EMPTY)};
    RETURN;
END IF;
_at := _leased - {lane_sql.SENDING_SECONDS};
_moment := _head.not_before;
IF _head.state = 'sending' THEN -- its sender died
    _head.state := 'unknown';
    _moment := greatest(_moment, coalesce(_head.started_at, 0) + _settle);
    {embed(lane_sql.LOST, row="_head.id")};
END IF;
IF _moment > _at THEN
    {embed(lane_sql.POSTPONE)};
    RETURN;
END IF;
IF _head.state = 'pending' THEN
    {embed(lane_sql.BEGIN, row="_head.id", begun="'sending'", started="_at")};
ELSE
    {embed(lane_sql.BEGIN, row="_head.id", begun="_head.state", started="_head.started_at")};
END IF;
RETURN QUERY SELECT {_HEAD_RECORD};
""",
)

# Takes the first row of the lane `_lane`, whose lease is `_leased`.
_TAKE_HEAD = f"""
SELECT * INTO _head FROM {_BEGIN_HEAD.name}(_lane, _sender, _settle, _leased)
    AS found({", ".join(lane_sql.HEAD_COLUMNS)});
IF FOUND THEN
    {_GIVE_HEAD};
END IF;
"""

RECEIVE = PostgresFunction(
    "receive",
    parameters={
        **dict.fromkeys(
            ("platforms", "bot_ids", "external_keys", "conversations", "kinds"), "text[]"
        ),
        "payloads": "bytea[]",
        "received_at": _FLOAT,
        **dict.fromkeys(("keys", "key_platforms", "key_bot_ids"), "text[]"),
        **dict.fromkeys(("names", "places"), "text[]"),
    },
    columns={},
    variables={},
    body=f"""
FOR _at IN 1 .. cardinality(_external_keys) LOOP
    {
        embed(
            conversation_sql.STORE,
            platform="_platforms[_at]",
            bot_id="_bot_ids[_at]",
            external_key="_external_keys[_at]",
            conversation="_conversations[_at]",
            kind="_kinds[_at]",
            payload="_payloads[_at]",
        )
    };
END LOOP;
FOR _at IN 1 .. cardinality(_keys) LOOP
    {
        embed(
            conversation_sql.MAKE_READY,
            key="_keys[_at]",
            platform="_key_platforms[_at]",
            bot_id="_key_bot_ids[_at]",
        )
    };
END LOOP;
FOR _at IN 1 .. cardinality(_names) LOOP
    {embed(conversation_sql.ADVANCE, name="_names[_at]", reached="_places[_at]")};
END LOOP;
""",
)

BEGIN = PostgresFunction(
    "begin",
    parameters={"keys": "text[]", "claimed_by": "text", "seconds": _FLOAT},
    columns={"of": "text", "epoch": "bigint", **_MESSAGE_TYPES},
    variables={},
    body=f"""
{_COMMIT_WITHOUT_WAITING};
FOREACH _of IN ARRAY _keys LOOP
    {embed(conversation_sql.CLAIM)} INTO _epoch;
    CONTINUE WHEN NOT FOUND;
    {embed(conversation_sql.NEXT)} INTO {_NEXT_MESSAGE};
    IF FOUND THEN
        RETURN NEXT;
    ELSE
        {embed(conversation_sql.SETTLE, at_epoch="_epoch")};
    END IF;
END LOOP;
""",
)

OPEN = PostgresFunction(
    "open",
    parameters={**_CLAIM, **_ROW_TYPES, **_IDENTITY},
    columns={"held": "boolean", "number": "bigint", **_HEAD_TYPES},
    variables={"session": "int", "leased": _FLOAT, "head": "record"},
    body=f"""
{embed(conversation_sql.LOCK)} INTO _session;
_held := FOUND;
IF _held THEN
    {embed(lane_sql.QUEUE_ONCE)} INTO _number;
    IF _sender IS NULL THEN
        {embed(lane_sql.MAKE_DUE, key="_lane")};
    ELSE
        {embed(lane_sql.MAKE_DUE_AND_TAKE, key="_lane")} INTO _leased;
        IF FOUND THEN
            {_TAKE_HEAD}
        END IF;
    END IF;
END IF;
RETURN NEXT;
""",
)

_ONE_TURN = {name: f"_one.{name}" for name in _TURN_TYPES}
_ONE_USAGE = {name: f"_one.of_{name}" for name in _USAGE_TYPES}
_ONE_CHANGE = {name: f"_one.{name}" for name in _CHANGE_TYPES}
_QUEUE_CHANGES = f"""
FOR _one IN
    SELECT * FROM json_to_recordset(_changes) AS change({_record(_CHANGE_TYPES)})
    UNION ALL
    SELECT part, 'delete', '', NULL, NULL, NULL, NULL, NULL, NULL
    FROM unnest(_opened) AS part WHERE part <> ALL (_parts)
LOOP
    CONTINUE WHEN _one.opened <> (_one.part = ANY (_opened));
    {embed(lane_sql.QUEUE, **_ONE_CHANGE)};
END LOOP;
"""

FINISH = PostgresFunction(
    "finish",
    parameters={
        **_CLAIM,
        "messages": "bigint[]",
        "new_session": "boolean",
        "go_on": "boolean",
        **{f"removed_{name}": "int" for name in ("count", "newer")},
        **{f"superseded_{name}": "int" for name in ("count", "newer")},
        "turns": "json",
        "receipts": "bytea[]",
        "usages": "json",
        "at": _FLOAT,
        "changes": "json",
        "parts": "int[]",
        "may_be_opened": "boolean",
        **{
            name: _ROW_TYPES[name]
            for name in ("turn", "platform", "bot_id", "chat", "thread", "lane", "reply_to")
        },
        **_IDENTITY,
    },
    columns={
        "held": "boolean",
        **_MESSAGE_TYPES,
        **_HEAD_TYPES,
    },
    variables={
        "session": "int",
        "message": "bigint",
        "opened": "int[]",
        "one": "record",
        "leased": _FLOAT,
        "head": "record",
    },
    body=f"""
IF _new_session THEN
    {embed(conversation_sql.BEGIN_SESSION)} INTO _session;
ELSE
    {embed(conversation_sql.LOCK)} INTO _session;
END IF;
_held := FOUND;
IF NOT _held THEN
    RETURN NEXT;
    RETURN;
END IF;
FOREACH _message IN ARRAY _messages LOOP
    {embed(conversation_sql.DONE)};
END LOOP;
IF _removed_count > 0 THEN
    {embed(conversation_sql.REMOVE_FAILED, **_range("removed"))};
    {embed(conversation_sql.REMOVE, **_range("removed"))};
END IF;
IF _superseded_count > 0 THEN
    {embed(conversation_sql.SUPERSEDE, **_range("superseded"))};
END IF;
FOR _one IN SELECT * FROM json_to_recordset(_turns) AS one({_record(_TURN_TYPES)}) LOOP
    {embed(conversation_sql.APPEND, conversation="_of", session="_session", **_ONE_TURN)};
END LOOP;
FOR _one IN
    SELECT * FROM ROWS FROM (
        unnest(_receipts), json_to_recordset(_usages) AS ({_record(_USAGE_TYPES)})
    ) AS one(content, {", ".join(f"of_{name}" for name in _USAGE_TYPES)})
LOOP
    {embed(conversation_sql.NOTE, conversation="_of", content="_one.content", **_ONE_USAGE)};
END LOOP;
_opened := '{{}}';
IF _may_be_opened THEN
    _opened := ARRAY(SELECT part FROM ({embed(conversation_sql.OPENED, of_turn="_turn")}) AS one);
END IF;
IF cardinality(_parts) + cardinality(_opened) > 0 THEN
    IF _sender IS NULL THEN
        {embed(lane_sql.MAKE_DUE, key="_lane")};
    ELSE
        {embed(lane_sql.MAKE_DUE_AND_TAKE, key="_lane")} INTO _leased;
    END IF;
    {_QUEUE_CHANGES}
    IF _leased IS NOT NULL THEN
        {_TAKE_HEAD}
    END IF;
END IF;
IF NOT _go_on THEN
    {embed(conversation_sql.RELEASE)} INTO _session;
ELSE
    {embed(conversation_sql.NEXT)} INTO {_NEXT_MESSAGE};
    IF NOT FOUND THEN
        {embed(conversation_sql.SETTLE)};
    END IF;
END IF;
RETURN NEXT;
""",
)

SENT = PostgresFunction(
    "sent",
    parameters={
        "row": "bigint",
        "attempt": "int",
        "arrived_as": "text",
        "lane": "text",
        **_IDENTITY,
    },
    columns={"held": "boolean", **_HEAD_TYPES},
    variables={"leased": _FLOAT, "head": "record"},
    body=f"""
PERFORM 1 FROM ({embed(lane_sql.LOCK, of="_lane")}) AS locked;
{embed(lane_sql.SENT)} INTO _lane;
_held := FOUND;
IF _held THEN
    {embed(lane_sql.EMPTY, of="_lane")}; -- rows queued from now on wait for this unit
    IF EXISTS ({embed(lane_sql.UNSENT, of="_lane")}) THEN
        {embed(lane_sql.HOLD, of="_lane")} INTO _leased;
        {_TAKE_HEAD}
    ELSE
        {_COMMIT_WITHOUT_WAITING};
    END IF;
END IF;
RETURN NEXT;
""",
)

TAKE = PostgresFunction(
    "take",
    parameters={"lanes": "text[]", **_IDENTITY},
    columns=_HEAD_TYPES,
    variables={"lane": "text", "leased": _FLOAT},
    body=f"""
FOREACH _lane IN ARRAY _lanes LOOP
    {embed(lane_sql.TAKE, of="_lane")} INTO _leased;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM {_BEGIN_HEAD.name}(_lane, _sender, _settle, _leased);
    END IF;
END LOOP;
""",
)

FUNCTIONS = (_BEGIN_HEAD, RECEIVE, BEGIN, OPEN, FINISH, SENT, TAKE)
"""Each after those that it calls."""
