"""What the two terminals share as platforms: one person, who owns the service."""

from typing_extensions import override

from bot.chat.incoming import Request
from bot.ports import Platform


class LocalPlatform(Platform):
    """A terminal of this machine, where nothing has to be connected."""

    @property
    @override
    def name(self) -> str:
        return "terminal"

    @property
    @override
    def connection_error(self) -> str | None:
        return None

    @override
    async def is_admin(self, incoming: Request) -> bool:
        return True  # this person can edit the settings, too

    @override
    async def check(self) -> str:
        return "this terminal"

    @override
    async def close(self) -> None:
        """Do nothing: no connection is open."""
