"""Base class of platforms without a network connection."""

from typing import ClassVar

from typing_extensions import override

from bot.chat.incoming import Request
from bot.ports import Platform


class LocalPlatform(Platform):
    name: str = ""
    account: ClassVar[str]
    """The description that `troupe check` shows."""
    is_operators: ClassVar[bool] = True
    """Whether only the operator can write here, so that every author is an admin."""
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
