"""Leases of roles that one process holds at a time, and the first bot of each platform.

The keys of the first bot carry no bot id. Data from before there could be several bots has none
either, so it stays that of the first bot.
"""

import secrets
from collections.abc import Sequence

from bot.ports import Clock
from bot.storage.database import Database, reading, transaction
from bot.storage.statements import SQL, Unit


class SqlRoleLeases:
    """A row for each role; retention deletes those of processes that ended long ago."""

    def __init__(self, database: Database, owner: str, clock: Clock) -> None:
        """Create the leases of this process; `owner` is unique among running processes."""
        self._database = database
        self._owner = owner
        self._clock = clock

    @transaction
    def take(self, role: str, seconds: float) -> Unit[bool]:
        """Take or renew the lease of a role; return False while another process holds it.

        Raises `StoreError` if it is not known whether this process holds it.
        """
        asked = {"role": role, "owner": self._owner, "seconds": seconds}
        return bool((yield SQL["take_role"].query({**asked, "now": self._clock.now()})))

    @transaction
    def release(self, role: str) -> Unit[None]:
        """Give back a lease, if this process holds it, so that another one need not wait."""
        yield SQL["release_role"].query({"role": role, "owner": self._owner})

    @reading
    def held(self, prefix: str) -> Unit[Sequence[str]]:
        """Return the roles with this beginning that any process holds; raises `StoreError`."""
        rows = yield SQL["held_roles"].query_alone({"prefix": prefix, "now": self._clock.now()})
        return [row[0] for row in rows]


_INSTALLATION = ""  # where no platform is meant


async def read_installation_id(database: Database) -> str:
    """Return a unique name of this database, even among databases at the same address."""
    return await database.run(lambda: _first(_INSTALLATION, secrets.token_hex(8)))


async def resolve_bot_id(database: Database, platform: str, account: str) -> str:
    """Return the bot id in a bot's addresses: empty for the platform's first bot.

    `account` is the platform's own id of the bot.
    """
    first = await database.run(lambda: _first(platform, account))
    return "" if first == account else account


def _first(platform: str, account: str) -> Unit[str]:
    """Return the first account of a platform: this one, unless there was an earlier one."""
    yield SQL["claim_first_bot"].query({"platform": platform, "account": account})
    [[first]] = yield SQL["first_bot"].query({"platform": platform})
    return str(first)
