"""Operational data in SQL: processes and their work, pauses, notes on messages, the audit log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import msgspec

from bot.chat.access import AuditEntry
from bot.chat.operation import AnswerPause, BackgroundWork, Node, ProcessReport, RoleHolder
from bot.chat.session import MessageNote
from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.rows import decode, decode_all
from bot.storage.statements import SQL, Unit, to_dict

_BACKGROUND_WORK_SQL = {
    "conversations waiting": "waiting_conversations",
    "conversations being answered": "answering_conversations",
    "chats with unsent messages": "waiting_lanes",
    "messages that may have been sent": "unknown_sends",
    "stories without a vector": "stories_without_vector",
}
"""Maps kinds of work to the statements that return the amount and the oldest item's age."""
_MAX_REPORT_BYTES = 2**18
_END_OF_TIME = 1e11
_encode_report = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(ProcessReport).decode


class NodeRegistry(ClockStore):
    """Registers the processes of an installation. The database's clock measures all ages."""

    @transaction
    def register(self, owner: str, roles: str, version: str) -> Unit[None]:
        yield SQL["leave_node"].query(owner=owner)  # from a previous run
        row = {"owner": owner, "roles": roles, "version": version}
        yield SQL["enter_node"].query({**row, **self._time_values()})

    @transaction
    def report_running(self, owner: str, roles: str, version: str) -> Unit[None]:
        """Record that a process is still running."""
        row = {"owner": owner, "roles": roles, "version": version}
        yield SQL["enter_node"].query({**row, **self._time_values()})

    @transaction
    def store_report(self, owner: str, report: ProcessReport) -> Unit[None]:
        """Store this process's newest report, for the consoles of other processes."""
        encoded_report = _encode_report(report)
        if len(encoded_report) <= _MAX_REPORT_BYTES:
            yield SQL["share_report"].query(owner=owner, report=encoded_report)

    @run_readonly
    def load_reports(self, owners: Sequence[str]) -> Unit[Mapping[str, ProcessReport]]:
        """Return the last reports of these processes, by owner name."""
        rows = [row for row in (yield SQL["node_reports"].query_alone()) if row[0] in owners]
        return dict(decode_all("report", rows, lambda row: (row[0], _decode_report(row[1]))))

    @transaction
    def unregister(self, owner: str) -> Unit[None]:
        """Remove a process that is shutting down."""
        yield SQL["leave_node"].query(owner=owner)

    @run_readonly
    def list_nodes(self) -> Unit[Sequence[Node]]:
        """Return running and recently crashed processes, oldest first."""
        time_values = self._time_values()
        leases: defaultdict[str, list[str]] = defaultdict(list)
        for owner, role in (yield SQL["leases_of_nodes"].query(time_values)):
            leases[owner].append(role)
        counts = to_dict((yield SQL["answering_nodes"].query(time_values)))
        return [
            Node(name, roles, version, uptime, report_age, tuple(leases[name]), counts.get(name, 0))
            for name, roles, version, uptime, report_age in (yield SQL["nodes"].query(time_values))
        ]

    @run_readonly
    def list_exclusive_roles(self) -> Unit[Sequence[RoleHolder]]:
        """Return the exclusive roles with their holders."""
        return [RoleHolder(*row) for row in (yield SQL["jobs"].query_alone(self._time_values()))]

    @run_readonly
    def list_background_work(self) -> Unit[Sequence[BackgroundWork]]:
        """Return the amount and age of waiting and running work, by kind."""
        work_items = []
        for name, statement in _BACKGROUND_WORK_SQL.items():
            [row] = yield SQL[statement].query(self._time_values())
            work_items.append(BackgroundWork(name, *row))
        return work_items

    def _time_values(self) -> dict[str, float]:
        return {"now": self._clock.now()}


class PauseStore(ClockStore):
    """Stores pauses. While a scope is paused, the bot answers nobody in it."""

    @run_readonly
    def list_all(self) -> Unit[Sequence[AnswerPause]]:
        """Return all pauses, oldest first."""
        return [AnswerPause(*row) for row in (yield SQL["pauses"].query_alone())]

    @transaction
    def begin(self, scope: str, author: str) -> Unit[bool]:
        """Pause a scope; return False if it was already paused."""
        return bool((yield SQL["begin_pause"].query(scope=scope, by=author, at=self._clock.now())))

    @transaction
    def end(self, scope: str) -> Unit[bool]:
        """End the pause of a scope; return False if there was none."""
        return bool((yield SQL["end_pause"].query(scope=scope)))


class SqlMessageNotes(ClockStore):
    """Stores short notes about messages, such as errors, by key."""

    @transaction
    def add(self, notes: Sequence[MessageNote]) -> Unit[None]:
        time_values = {"at": self._clock.now()}
        rows = [{"key": one.key, "content": one.content, "person": one.person_id} for one in notes]
        yield SQL["add_note"].query_many([{**row, **time_values} for row in rows])

    @run_readonly
    def list_notes(self, key: str, limit: int) -> Unit[Sequence[str]]:
        """Return the newest notes with a key, oldest first."""
        rows = yield SQL["newest_notes"].query_alone(key=key, most=limit)
        return [decode(lambda row: str(row[0]), row) for row in reversed(rows)]

    @run_readonly
    def list_notes_of_kind(
        self, kind: str, limit: int, since: float | None = None, until: float | None = None
    ) -> Unit[Sequence[str]]:
        """Return notes between `since` and `until` whose keys start with `kind`, newest first."""
        times = {"since": since or 0.0, "until": until or _END_OF_TIME}
        rows = yield SQL["newest_notes_of_kind"].query_alone({**times, "kind": kind, "most": limit})
        return [decode(lambda row: str(row[0]), row) for row in rows]

    @transaction
    def forget(self, key: str, person_id: str | None = None) -> Unit[None]:
        """Delete the notes with a key: those of one person, or all if `person_id` is None."""
        statement = SQL["forget_notes"] if person_id is None else SQL["forget_notes_of_person"]
        yield statement.query(key=key, person=person_id)


class AuditLog(ClockStore):
    """Changes made in the console, on the command line, or by admins in chats."""

    @transaction
    def record(
        self, who: str, action: str, subject: str, before: str = "", after: str = ""
    ) -> Unit[None]:
        entry = AuditEntry(self._clock.now(), who, action, subject, before, after)
        yield SQL["record_change"].query(asdict(entry))

    @run_readonly
    def newest(self, limit: int) -> Unit[Sequence[AuditEntry]]:
        """Return the newest entries, newest first."""
        rows = yield SQL["newest_changes"].query_alone(most=limit)
        return [decode(lambda row: AuditEntry(*row), row) for row in rows]
