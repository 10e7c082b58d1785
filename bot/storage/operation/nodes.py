"""The processes of an installation and their work, in SQL."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    null,
    select,
)
from typing_extensions import override

from bot.chat.console.operation import BackgroundWork, HeldJob, Node
from bot.chat.outgoing import OutboxState
from bot.ports import Clock, NodeRegistry
from bot.storage.engine.statements import DialectName
from bot.storage.sql.database import Database
from bot.storage.sql.tables import (
    Insert,
    conversation,
    is_job,
    is_ready,
    is_unsent,
    is_waiting,
    lane,
    node,
    outbox,
    role_lease,
    story,
    upsert,
)
from bot.storage.units.dialects import clock


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


class SqlNodeRegistry(NodeRegistry):
    """All ages are by the clock of the database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def enter(self, owner: str, roles: str, version: str) -> None:
        row, of = {"owner": owner, "roles": roles, "version": version}, {"of_owner": owner}

        def unit(connection: Connection) -> None:
            connection.execute(_REMOVE, of)  # of an earlier life
            connection.execute(_REPORT[self._database.dialect], {**row, **self._now()})

        await self._database.write(unit)

    @override
    async def report(self, owner: str, roles: str, version: str) -> None:
        row = {"owner": owner, "roles": roles, "version": version, **self._now()}
        statement = _REPORT[self._database.dialect]
        await self._database.write(lambda c: c.execute(statement, row).rowcount)

    @override
    async def leave(self, owner: str) -> None:
        await self._database.write(lambda c: c.execute(_REMOVE, {"of_owner": owner}).rowcount)

    @override
    async def nodes(self) -> Sequence[Node]:
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

    @override
    async def held_jobs(self) -> Sequence[HeldJob]:
        now = clock(self._database.dialect)
        columns = (
            *(role_lease.c.role, role_lease.c.owner),
            *(now - role_lease.c.held_since, role_lease.c.lease_until - now),
        )
        held = select(*columns).where(is_job).order_by(role_lease.c.role)
        rows = await self._database.read(lambda c: c.execute(held, self._now()).all())
        return [HeldJob(*row) for row in rows]

    @override
    async def background_work(self) -> Sequence[BackgroundWork]:
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
