"""Base class of platforms without a network connection."""

from typing import ClassVar

from typing_extensions import override

from bot.chat.incoming import Request
from bot.ports import Platform


class LocalPlatform(Platform):
    name: str = ""
    account: ClassVar[str]
    """What `troupe check` calls it."""
    is_operators: ClassVar[bool] = True
    """Whether only the operator writes here, who can edit the settings anyway."""
    connection_error: ClassVar[str | None] = None

    @override
    async def is_admin(self, incoming: Request) -> bool:
        return self.is_operators

    @override
    async def check(self) -> str:
        return self.account

    @override
    async def close(self) -> None:
        """Do nothing, because no connection is open."""
