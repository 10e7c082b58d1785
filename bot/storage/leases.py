"""Leases for roles that one process holds at a time, and each platform's first bot."""

import secrets
from collections.abc import Sequence

from bot.ports import Clock
from bot.storage.database import ClockStore, Database, reading, transaction
from bot.storage.statements import SQL, Unit


class SqlRoleLeases(ClockStore):
    """A row per role; retention deletes those of processes that ended long ago."""

    def __init__(self, database: Database, owner: str, clock: Clock) -> None:
        """Create this process's leases; `owner` is unique among running processes."""
        super().__init__(database, clock)
        self._owner = owner

    @transaction
    def take(self, role: str, seconds: float) -> Unit[bool]:
        """Take or renew a lease; False while another process holds it; raises `StoreError`."""
        asked = {"role": role, "owner": self._owner, "seconds": seconds}
        return bool((yield SQL["take_role"].query({**asked, "now": self._clock.now()})))

    @transaction
    def release(self, role: str) -> Unit[None]:
        """Release a lease held by this process, so that others need not wait."""
        yield SQL["release_role"].query(role=role, owner=self._owner)

    @reading
    def held(self, prefix: str) -> Unit[Sequence[str]]:
        """Return the held roles with this prefix, of any process; raises `StoreError`."""
        rows = yield SQL["held_roles"].query_alone(prefix=prefix, now=self._clock.now())
        return [row[0] for row in rows]


_INSTALLATION = ""  # where no platform is meant


async def read_installation_id(database: Database) -> str:
    """Return this database's unique name, which differs even at the same address."""
    return await database.run(lambda: _first_account(_INSTALLATION, secrets.token_hex(8)))


async def resolve_bot_id(database: Database, platform: str, account: str) -> str:
    """Return the bot id for a bot's addresses; empty for a platform's first account."""
    first = await database.run(lambda: _first_account(platform, account))
    return "" if first == account else account


def _first_account(platform: str, account: str) -> Unit[str]:
    """Return a platform's first account, which is this one if there was none."""
    yield SQL["claim_first_bot"].query(platform=platform, account=account)
    [[first]] = yield SQL["first_bot"].query(platform=platform)
    return str(first)
