"""Which bot of a platform was the first on a database: its keys carry no bot id.

Data from before there could be several bots has none either, so it stays that of the first bot.
"""

import secrets

from sqlalchemy import Connection, bindparam, select

from bot.storage.sql.database import Database
from bot.storage.sql.tables import first_bot, upsert

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
