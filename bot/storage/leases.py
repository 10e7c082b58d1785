"""Leases of roles that one process holds at a time, and the first bot of each platform.

The keys of the first bot carry no bot id. Data from before there could be several bots has none
either, so it stays that of the first bot.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, Executable, and_, bindparam, case, or_, select, update

from bot.ports import Clock, Signals
from bot.storage.database import Database
from bot.storage.statements import DialectName, clock
from bot.storage.tables import Insert, first_bot, role_lease, upsert

_TOPIC = "released_roles"


def _take(dialect: DialectName) -> Executable:
    def build(insert: Insert) -> Executable:
        until = clock(dialect) + bindparam("seconds")
        now = clock(dialect)
        taken = insert.values(
            role=bindparam("role"), owner=bindparam("owner"), lease_until=until, held_since=now
        )
        is_held = and_(role_lease.c.owner == taken.excluded.owner, role_lease.c.lease_until >= now)
        may_take = or_(
            role_lease.c.owner == taken.excluded.owner,
            role_lease.c.lease_until < clock(dialect),
        )
        return taken.on_conflict_do_update(
            index_elements=[role_lease.c.role],
            set_={
                "owner": taken.excluded.owner,
                "lease_until": taken.excluded.lease_until,
                "held_since": case((is_held, role_lease.c.held_since), else_=now),
            },
            where=may_take,
        ).returning(role_lease.c.role)

    return upsert(role_lease, build)[dialect]


_TAKE: Mapping[DialectName, Executable] = {
    "sqlite": _take("sqlite"),
    "postgresql": _take("postgresql"),
}
_RELEASE = (
    update(role_lease)
    .where(role_lease.c.role == bindparam("held"), role_lease.c.owner == bindparam("holder"))
    .values(lease_until=0.0)
)


class SqlRoleLeases:
    """A row for each role; retention deletes those of processes that ended long ago."""

    def __init__(
        self, database: Database, owner: str, clock: Clock, signals: Signals | None = None
    ) -> None:
        """Take what decides who holds what.

        Args:
            database: has the rows.
            owner: the name of this process, which no other running one has.
            clock: time.
            signals: tell all processes what is given back; None: they find out by asking.
        """
        self._database = database
        self._owner = owner
        self._clock = clock
        self._signals = signals
        self._handlers: dict[object, Callable[[Sequence[str]], None]] = {}
        if signals is not None:
            signals.subscribe(_TOPIC, self._tell_handlers)

    async def take(self, role: str, seconds: float) -> bool:
        """Take or renew the lease of a role; return False while another process holds it.

        Raises:
            StoreError: It is not known whether this process holds it.
        """
        asked = {"role": role, "owner": self._owner, "seconds": seconds, "now": self._clock.now()}
        statement = _TAKE[self._database.dialect]

        def unit(connection: Connection) -> bool:
            return connection.execute(statement, asked).first() is not None

        return await self._database.write(unit)

    async def release(self, role: str) -> None:
        """Give back a lease, if this process holds it, so that another one need not wait."""
        held = {"held": role, "holder": self._owner}
        was_held = await self._database.write(lambda c: c.execute(_RELEASE, held).rowcount)
        if was_held and self._signals is not None:
            self._signals.publish(_TOPIC, [role])

    async def held(self, prefix: str) -> Sequence[str]:
        """Return the roles with this beginning that any process holds; raises `StoreError`."""
        query = select(role_lease.c.role).where(
            role_lease.c.role.startswith(prefix, autoescape=True),
            role_lease.c.lease_until >= clock(self._database.dialect),
        )
        asked = {"now": self._clock.now()}
        return await self._database.read(lambda c: list(c.execute(query, asked).scalars()))

    def on_release(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call `handler` with roles that any process has given back, as far as signals reach.

        It must not block or raise.

        Returns:
            What ends that.
        """
        key = object()
        self._handlers[key] = handler

        def end() -> None:
            self._handlers.pop(key, None)

        return end

    def _tell_handlers(self, roles: Sequence[str]) -> None:
        for handler in list(self._handlers.values()):
            handler(roles)


_CLAIM = upsert(first_bot, lambda insert: insert.on_conflict_do_nothing())
_INSTALLATION = ""  # where no platform is meant
_FIRST = select(first_bot.c.account).where(first_bot.c.platform == bindparam("of"))


async def read_installation_id(database: Database) -> str:
    """Return a name of this database that no other one has, also not one at the same address."""

    def unit(connection: Connection) -> str:
        claim = _CLAIM[connection.dialect.name]
        connection.execute(claim, {"platform": _INSTALLATION, "account": secrets.token_hex(8)})
        return str(connection.execute(_FIRST, {"of": _INSTALLATION}).scalar_one())

    return await database.write(unit)


async def resolve_bot_id(database: Database, platform: str, account: str) -> str:
    """Return what the addresses of a bot carry: nothing for the platform's first one.

    `account` is the platform's own id of the bot.
    """

    def unit(connection: Connection) -> str:
        claim = _CLAIM[connection.dialect.name]
        connection.execute(claim, {"platform": platform, "account": account})
        first: str = connection.execute(_FIRST, {"of": platform}).scalar_one()
        return "" if first == account else account

    return await database.write(unit)
