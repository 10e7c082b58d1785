"""Leases for roles that only one process may hold; also stores each platform's first bot."""

import secrets
from collections.abc import Sequence

from bot.ports import Clock
from bot.storage.database import ClockStore, Database, run_readonly, transaction
from bot.storage.statements import SQL, Unit


class SqlRoleLeases(ClockStore):
    """Leases on exclusive roles, one row per role."""

    def __init__(self, database: Database, owner: str, clock: Clock) -> None:
        """Create the leases of this process; `owner` is its unique name."""
        super().__init__(database, clock)
        self._owner = owner

    @transaction
    def take(self, role: str, seconds: float) -> Unit[bool]:
        """Take or renew the lease of a role; return False if another process holds it."""
        values = {"role": role, "owner": self._owner, "seconds": seconds}
        return bool((yield SQL["take_role"].query({**values, "now": self._clock.now()})))

    @transaction
    def release(self, role: str) -> Unit[None]:
        """Release a lease of this process, so that others need not wait until it expires."""
        yield SQL["release_role"].query(role=role, owner=self._owner)

    @run_readonly
    def list_held_roles(self, prefix: str) -> Unit[Sequence[str]]:
        """Return the roles that start with `prefix` and are held by any process."""
        rows = yield SQL["held_roles"].query_alone(prefix=prefix, now=self._clock.now())
        return [row[0] for row in rows]


_INSTALLATION_KEY = ""  # in place of a platform's name


async def read_installation_id(database: Database) -> str:
    """Return the unique id of this database, which it keeps if it is moved."""
    return await database.run(lambda: _claim_first_account(_INSTALLATION_KEY, secrets.token_hex(8)))


async def resolve_bot_id(database: Database, platform: str, account: str) -> str:
    """Return the bot id to use in addresses; empty for the platform's first account."""
    first_account = await database.run(lambda: _claim_first_account(platform, account))
    return "" if first_account == account else account


def _claim_first_account(platform: str, account: str) -> Unit[str]:
    """Return the platform's first account; if there was none, `account` becomes the first."""
    yield SQL["claim_first_bot"].query(platform=platform, account=account)
    [[first_account]] = yield SQL["first_bot"].query(platform=platform)
    return str(first_account)
