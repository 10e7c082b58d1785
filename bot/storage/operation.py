"""Operators' data in SQL: processes and their work, pauses, notes, the audit log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

import msgspec

from bot.chat.access import AuditEntry
from bot.chat.operation import BackgroundWork, HeldJob, Node, Pause, ProcessReport
from bot.chat.session import MessageNote
from bot.ports import Clock
from bot.storage.database import Database, reading, transaction
from bot.storage.rows import decode, decode_all
from bot.storage.statements import Statement, Unit, insert_into, pairs

_ENTER = Statement("""
INSERT INTO node (owner, roles, version, started_at, seen_at)
VALUES (:owner, :roles, :version, :now, :now)
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at
""")
_LEAVE = Statement("DELETE FROM node WHERE owner = :owner")
_SHARE = Statement("UPDATE node SET report = :report WHERE owner = :owner")
_REPORTS = Statement("SELECT owner, report FROM node WHERE report IS NOT NULL")
_NODES = Statement("""
SELECT owner, roles, version, :now - started_at, :now - seen_at FROM node ORDER BY started_at
""")
_LEASES = Statement("SELECT owner, role FROM role_lease WHERE lease_until > :now ORDER BY role")
_ANSWERING = Statement("""
SELECT owner, count(*) FROM conversation
WHERE ready_since IS NOT NULL AND lease_until > :now GROUP BY owner
""")
IS_JOB = "role NOT LIKE 'shards of %' AND role NOT LIKE 'identify %'"
"""Matches roles that some process should always hold; the others coordinate shards and logins."""
_JOBS = Statement(f"""
SELECT role, owner, :now - held_since, lease_until - :now FROM role_lease WHERE {IS_JOB}
ORDER BY role
""")
_WORK = {
    name: Statement(text)
    for name, text in {
        "conversations that wait": """
            SELECT count(*), :now - min(ready_since) FROM conversation
            WHERE ready_since IS NOT NULL AND lease_until <= :now
        """,
        "conversations being answered": """
            SELECT count(*), :now - min(ready_since) FROM conversation
            WHERE ready_since IS NOT NULL AND lease_until > :now
        """,
        "lanes that wait to be sent": """
            SELECT count(*), :now - min(due_at) FROM lane WHERE due_at <= :now
        """,
        "sends with an unknown outcome": """
            SELECT count(*), :now - min(started_at) FROM outbox
            WHERE state NOT IN ('sent', 'dead') AND state = 'unknown'
        """,
        "stories without a vector": "SELECT count(*), NULL FROM story WHERE vector IS NULL",
    }.items()
}
_MAX_BYTES = 2**18
_encode_report = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(ProcessReport).decode


class NodeRegistry:
    """The processes of an installation. All ages are by the clock of the database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @transaction
    def enter(self, owner: str, roles: str, version: str) -> Unit[None]:
        """Register a process that has started."""
        yield _LEAVE.query({"owner": owner})  # of an earlier life
        yield _ENTER.query({"owner": owner, "roles": roles, "version": version, **self._now()})

    @transaction
    def report(self, owner: str, roles: str, version: str) -> Unit[None]:
        """Record that a process is alive."""
        yield _ENTER.query({"owner": owner, "roles": roles, "version": version, **self._now()})

    @transaction
    def share(self, owner: str, report: ProcessReport) -> Unit[None]:
        """Publish this process's report to the other processes, replacing its last one."""
        told = _encode_report(report)
        if len(told) <= _MAX_BYTES:
            yield _SHARE.query({"owner": owner, "report": told})

    @reading
    def reports(self, owners: Sequence[str]) -> Unit[Mapping[str, ProcessReport]]:
        """Return the last report of each of these processes, by the name of its leases."""
        rows = [row for row in (yield _REPORTS.query_alone()) if row[0] in owners]
        return dict(decode_all("report", rows, lambda row: (row[0], _decode_report(row[1]))))

    @transaction
    def leave(self, owner: str) -> Unit[None]:
        """Remove a process that ends."""
        yield _LEAVE.query({"owner": owner})

    @reading
    def nodes(self) -> Unit[Sequence[Node]]:
        """Return the running processes and those that died within days, oldest first."""
        now = self._now()
        held: defaultdict[str, list[str]] = defaultdict(list)
        for owner, role in (yield _LEASES.query(now)):
            held[owner].append(role)
        counts = pairs((yield _ANSWERING.query(now)))
        return [
            Node(owner, roles, version, age, seen, tuple(held[owner]), counts.get(owner, 0))
            for owner, roles, version, age, seen in (yield _NODES.query(now))
        ]

    @reading
    def held_jobs(self) -> Unit[Sequence[HeldJob]]:
        """Return the holders of roles that only one process may have, by role."""
        return [HeldJob(*row) for row in (yield _JOBS.query_alone(self._now()))]

    @reading
    def background_work(self) -> Unit[Sequence[BackgroundWork]]:
        """Return the amount of waiting or running work by kind, and its age."""
        found = []
        for name, statement in _WORK.items():
            [row] = yield statement.query(self._now())
            found.append(BackgroundWork(name, *row))
        return found

    def _now(self) -> dict[str, float]:
        return {"now": self._clock.now()}


_CURRENT = Statement("SELECT scope, by, at FROM pause ORDER BY at")
_BEGIN = Statement(
    insert_into("pause", ("scope", "by", "at")) + " ON CONFLICT DO NOTHING RETURNING scope"
)
_END = Statement("DELETE FROM pause WHERE scope = :scope RETURNING scope")


class Pauses:
    """The pauses of answering."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @reading
    def current(self) -> Unit[Sequence[Pause]]:
        """Return all pauses, oldest first."""
        return [Pause(*row) for row in (yield _CURRENT.query_alone())]

    @transaction
    def begin(self, scope: str, by: str) -> Unit[bool]:
        """Pause a scope; return False if it is paused already."""
        row = {"scope": scope, "by": by, "at": self._clock.now()}
        return bool((yield _BEGIN.query(row)))

    @transaction
    def end(self, scope: str) -> Unit[bool]:
        """End the pause of a scope; return False if there is none."""
        return bool((yield _END.query({"scope": scope})))


_ADD = Statement(insert_into("message_note", ("key", "at", "content", "person")))
_NEWEST = Statement("""
SELECT content FROM message_note WHERE key = :key ORDER BY id DESC LIMIT :most
""")
_FORGET = Statement("DELETE FROM message_note WHERE key = :key")
_FORGET_PERSON = Statement("DELETE FROM message_note WHERE key = :key AND person = :person")


class SqlMessageNotes:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @transaction
    def add(self, notes: Sequence[MessageNote]) -> Unit[None]:
        """Store notes."""
        at = {"at": self._clock.now()}
        rows = [{"key": one.key, "content": one.content, "person": one.person} for one in notes]
        yield _ADD.query_many([{**row, **at} for row in rows])

    @reading
    def newest(self, key: str, limit: int) -> Unit[Sequence[str]]:
        """Return the newest notes of a key, oldest first."""
        rows = yield _NEWEST.query_alone({"key": key, "most": limit})
        return [decode(lambda row: str(row[0]), row) for row in reversed(rows)]

    @transaction
    def forget(self, key: str, person_id: str | None = None) -> Unit[None]:
        """Delete the notes of a key, of one person or of all."""
        statement = _FORGET if person_id is None else _FORGET_PERSON
        yield statement.query({"key": key, "person": person_id})


_ENTRY = tuple(one.name for one in fields(AuditEntry))
RECORD = Statement(insert_into("audit", _ENTRY))
_NEWEST_ENTRIES = Statement(f"SELECT {', '.join(_ENTRY)} FROM audit ORDER BY id DESC LIMIT :most")


class AuditLog:
    """Who changed what over the console, with the command line, or as an admin in a chat."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @transaction
    def record(self, entry: AuditEntry) -> Unit[None]:
        yield RECORD.query(asdict(entry))

    @reading
    def newest(self, limit: int) -> Unit[Sequence[AuditEntry]]:
        """Return the newest entries, newest first."""
        rows = yield _NEWEST_ENTRIES.query_alone({"most": limit})
        return [decode(lambda row: AuditEntry(*row), row) for row in rows]
