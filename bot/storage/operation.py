"""What operators see and do, in SQL: processes and their work, pauses, notes, the audit log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
)

from bot.chat.access import AuditEntry
from bot.chat.operation import BackgroundWork, HeldJob, Node, Pause
from bot.chat.outgoing import OutboxState
from bot.chat.session import MessageNote
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.statements import DialectName, clock
from bot.storage.tables import (
    Insert,
    audit,
    conversation,
    is_job,
    is_ready,
    is_unsent,
    is_waiting,
    lane,
    message_note,
    node,
    outbox,
    pause,
    role_lease,
    story,
    upsert,
)


def _report(dialect: DialectName) -> Executable:
    def build(insert: Insert) -> Executable:
        now = clock(dialect)
        values: dict[str, Any] = {name: bindparam(name) for name in ("owner", "roles", "version")}
        row = insert.values(**values, started_at=now, seen_at=now)
        return row.on_conflict_do_update(
            index_elements=[node.c.owner], set_={"seen_at": row.excluded.seen_at}
        )

    return upsert(node, build)[dialect]


_REPORT: Mapping[DialectName, Executable] = {
    "sqlite": _report("sqlite"),
    "postgresql": _report("postgresql"),
}
_REMOVE = delete(node).where(node.c.owner == bindparam("of_owner"))


class SqlNodeRegistry:
    """All ages are by the clock of the database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def enter(self, owner: str, roles: str, version: str) -> None:
        """Note that a process has started."""
        row, of = {"owner": owner, "roles": roles, "version": version}, {"of_owner": owner}

        def unit(connection: Connection) -> None:
            connection.execute(_REMOVE, of)  # of an earlier life
            connection.execute(_REPORT[self._database.dialect], {**row, **self._now()})

        await self._database.write(unit)

    async def report(self, owner: str, roles: str, version: str) -> None:
        """Note that a process is there."""
        row = {"owner": owner, "roles": roles, "version": version, **self._now()}
        statement = _REPORT[self._database.dialect]
        await self._database.write(lambda c: c.execute(statement, row).rowcount)

    async def leave(self, owner: str) -> None:
        """Note that a process ends."""
        await self._database.write(lambda c: c.execute(_REMOVE, {"of_owner": owner}).rowcount)

    async def nodes(self) -> Sequence[Node]:
        """Return the processes that are there, and those that died within days, oldest first."""
        now = clock(self._database.dialect)
        seen = self._seen
        leases = select(role_lease.c.role, role_lease.c.owner).where(role_lease.c.lease_until > now)
        answering = (
            select(conversation.c.owner, func.count())
            .where(is_ready, conversation.c.lease_until > now)
            .group_by(conversation.c.owner)
        )

        def unit(connection: Connection) -> list[Node]:
            held: defaultdict[str, list[str]] = defaultdict(list)
            for role, owner in connection.execute(leases, self._now()):
                held[owner].append(role)
            rows = connection.execute(answering, self._now()).all()
            counts = {row.owner: row[1] for row in rows}
            return [
                _to_node(row, tuple(sorted(held[row.owner])), counts.get(row.owner, 0))
                for row in connection.execute(seen, self._now())
            ]

        return await self._database.read(unit)

    async def held_jobs(self) -> Sequence[HeldJob]:
        """Return who does what only one process may do, by the role."""
        now = clock(self._database.dialect)
        columns = (
            *(role_lease.c.role, role_lease.c.owner),
            *(now - role_lease.c.held_since, role_lease.c.lease_until - now),
        )
        held = select(*columns).where(is_job).order_by(role_lease.c.role)
        rows = await self._database.read(lambda c: c.execute(held, self._now()).all())
        return [HeldJob(*row) for row in rows]

    async def background_work(self) -> Sequence[BackgroundWork]:
        """Return how much work waits or goes on, by its kind, and how old it is."""
        now = clock(self._database.dialect)
        is_held = conversation.c.lease_until > now
        is_unknown = is_unsent & (outbox.c.state == OutboxState.UNKNOWN)
        since_ready, is_due = conversation.c.ready_since, is_waiting & (lane.c.due_at <= now)
        no_vector = story.c.vector.is_(None)
        asked: dict[str, Select[*tuple[Any, ...]]] = {
            "conversations that wait": _work(now, since_ready, is_ready, ~is_held),
            "conversations being answered": _work(now, since_ready, is_ready, is_held),
            "lanes that wait to be sent": _work(now, lane.c.due_at, is_due),
            "sends with an unknown outcome": _work(now, outbox.c.started_at, is_unknown),
            "stories without a vector": select(func.count(), null()).where(no_vector),
        }

        def unit(connection: Connection) -> list[BackgroundWork]:
            return [
                BackgroundWork(name, *connection.execute(one, self._now()).one())
                for name, one in asked.items()
            ]

        return await self._database.read(unit)

    @property
    def _seen(self) -> Select[*tuple[Any, ...]]:
        now = clock(self._database.dialect)
        ages = (now - node.c.started_at, now - node.c.seen_at)
        return select(node, *ages).order_by(node.c.started_at)

    def _now(self) -> dict[str, float]:
        return {"now": self._clock.now()}


def _to_node(row: Row[*tuple[Any, ...]], leases: tuple[str, ...], conversations: int) -> Node:
    return Node(
        owner=row.owner,
        roles=row.roles,
        version=row.version,
        started_seconds=row[-2],
        seen_seconds=row[-1],
        leases=leases,
        conversations=conversations,
    )


def _work(
    now: ColumnElement[float], since: ColumnElement[float | None], *which: ColumnElement[bool]
) -> Select[*tuple[Any, ...]]:
    """Count rows, and measure how old the oldest of them is."""
    return select(func.count(), now - func.min(since)).where(*which)


_CURRENT = select(pause.c.scope, pause.c.by, pause.c.at).order_by(pause.c.at)
_BEGIN = upsert(pause, lambda insert: insert.on_conflict_do_nothing())
_END = delete(pause).where(pause.c.scope == bindparam("of_scope"))


class SqlPauses:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def current(self) -> Sequence[Pause]:
        """Return all pauses, oldest first."""
        rows = await self._database.read(lambda c: c.execute(_CURRENT).all())
        return [Pause(*row) for row in rows]

    async def begin(self, scope: str, by: str) -> bool:
        """Pause a scope; return False if it is paused already."""
        row = {"scope": scope, "by": by, "at": self._clock.now()}
        statement = _BEGIN[self._database.dialect]
        return bool(await self._database.write(lambda c: c.execute(statement, row).rowcount))

    async def end(self, scope: str) -> bool:
        """End the pause of a scope; return False if there is none."""
        asked = {"of_scope": scope}
        return bool(await self._database.write(lambda c: c.execute(_END, asked).rowcount))


_NEWEST = (
    select(message_note.c.content)
    .where(message_note.c.key == bindparam("of"))
    .order_by(message_note.c.id.desc())
    .limit(bindparam("most"))
)
_FORGET = delete(message_note).where(message_note.c.key == bindparam("of"))
_FORGET_PERSON = _FORGET.where(message_note.c.person == bindparam("by"))


class SqlMessageNotes:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add(self, notes: Sequence[MessageNote]) -> None:
        """Store notes."""
        now = self._clock.now()
        rows = [
            {"key": one.key, "at": now, "content": one.content, "person": one.person}
            for one in notes
        ]
        await self._database.write(lambda c: c.execute(insert(message_note), rows).rowcount)

    async def newest(self, key: str, limit: int) -> Sequence[str]:
        """Return the newest notes of a key, oldest first."""
        asked: Mapping[str, object] = {"of": key, "most": limit}
        found = await self._database.read(lambda c: c.execute(_NEWEST, asked).scalars().all())
        return found[::-1]

    async def forget(self, key: str, person_id: str | None = None) -> None:
        """Delete the notes of a key, of one person or of all."""
        statement = _FORGET if person_id is None else _FORGET_PERSON
        asked = {"of": key} if person_id is None else {"of": key, "by": person_id}
        await self._database.write(lambda c: c.execute(statement, asked).rowcount)


_COLUMNS = (
    *(audit.c.at, audit.c.who, audit.c.action),
    *(audit.c.subject, audit.c.before, audit.c.after),
)
_NEWEST_ENTRIES = select(*_COLUMNS).order_by(audit.c.id.desc())


class SqlAuditLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, entry: AuditEntry) -> None:
        row = asdict(entry)
        await self._database.write(lambda c: c.execute(insert(audit), row).rowcount)

    async def newest(self, limit: int) -> Sequence[AuditEntry]:
        """Return the newest entries, newest first."""
        rows = await self._database.read(lambda c: c.execute(_NEWEST_ENTRIES.limit(limit)).all())
        return [AuditEntry(*row) for row in rows]
