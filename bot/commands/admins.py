"""Check that a command that changes what others see comes from an admin."""

from collections.abc import Awaitable, Callable, Collection

import structlog

from bot.chat.incoming import Said
from bot.errors import PlatformError, UserError
from bot.texts.text import translatable

_log = structlog.get_logger(__name__)


class AdminCheck:
    """Asks when the command runs: whoever was an admin a minute ago may not be one now."""

    def __init__(
        self,
        admin_ids: Collection[str],
        is_platform_admin: Callable[[Said], Awaitable[bool]],
    ) -> None:
        """Take the admins of the whole service, and who asks the platform about all others."""
        self._admin_ids = admin_ids
        self._is_platform_admin = is_platform_admin

    async def is_admin(self, incoming: Said) -> bool:
        """Return whether the author may change what others see; False if the platform is mute."""
        try:
            return await self._ask(incoming)
        except PlatformError as error:
            _log.warning("admin_unknown", by=incoming.author.id, reason=str(error))
            return False

    async def _ask(self, incoming: Said) -> bool:
        return incoming.author.id in self._admin_ids or await self._is_platform_admin(incoming)

    async def require(self, incoming: Said, action: str) -> None:
        """Log the request for the audit and refuse it unless the author is an admin.

        Raises:
            UserError: the author is none, or the platform did not say; the text names the action.
        """
        unknown = False
        try:
            allowed = await self._ask(incoming)
        except PlatformError as error:
            allowed, unknown = False, True
            _log.warning("admin_unknown", by=incoming.author.id, reason=str(error))
        _log.info(
            "admin_asked_for",
            what=action,
            by=incoming.author.id,
            in_=incoming.address.conversation,
            allowed=allowed,
        )
        if unknown:
            platform = incoming.address.platform.capitalize()
            raise UserError(
                translatable(
                    "Only an admin can {action}, and {platform} does not say just now whether you"
                    " are one. Please try again in a minute.",
                    action=action,
                    platform=platform,
                )
            )
        if not allowed:
            raise UserError(translatable("Only an admin can {action}.", action=action))
