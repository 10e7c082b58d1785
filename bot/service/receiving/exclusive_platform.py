"""A platform that only one of several processes receives from."""

from typing_extensions import override

from bot.chat.incoming import Request
from bot.ports import Intake, Platform, Surface
from bot.service.exclusive_role import ExclusiveRole


class ExclusivePlatform(Platform):
    """Receives while it holds its role, and sends at any time."""

    def __init__(self, platform: Platform, role: ExclusiveRole) -> None:
        self._platform = platform
        self._role = role

    @property
    @override
    def name(self) -> str:
        return self._platform.name

    @property
    @override
    def surface(self) -> Surface:
        return self._platform.surface

    @property
    @override
    def connection_error(self) -> str | None:
        """Why nothing is received; a process that stands by is as it should be."""
        return None if self._role.is_standby else self._platform.connection_error

    @override
    async def run(self, intake: Intake) -> None:
        await self._role.run(lambda: self._platform.run(intake))

    @override
    async def check(self) -> str:
        return await self._platform.check()

    @override
    async def close(self) -> None:
        await self._platform.close()

    @override
    async def is_admin(self, incoming: Request) -> bool:
        return await self._platform.is_admin(incoming)
