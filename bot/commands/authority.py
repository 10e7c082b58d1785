"""Admin checks for commands, including anonymous admins."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog

from bot.chat.command import CommandOption
from bot.chat.incoming import Address, ButtonPress, IncomingMessage, Person, Request
from bot.commands.request import CommandRequest, CommandResult, admin_command
from bot.errors import PlatformError, PrivateError
from bot.ports import ChatSettings, Clock
from bot.runtime.in_process import BoundedDict
from bot.storage.operation import AuditLog
from bot.texts.text import Text, join_texts, marked, translatable

_ANONYMOUS_ADMINS_KEY = "anonymous_admins"


def writes_as_group(incoming: Request) -> bool:
    """Return whether the author posts as the group itself, as anonymous admins do."""
    return is_group_author(incoming.author, incoming.address) and not incoming.is_private


def is_group_author(author: Person, address: Address) -> bool:
    """Return whether the author of a message is the group itself."""
    return author.id == f"{address.platform}:{address.chat}"


_log = structlog.get_logger(__name__)
_CHECK_CACHE_SECONDS = 30.0
_PRESS_TIMEOUT_SECONDS = 3.0
_MAX_CACHED_CHECKS = 1000
_ANONYMOUS_HINT = translatable(
    "Anonymous admins count as admins once a non-anonymous admin sends /settings anonymous on."
)


@dataclass(eq=False)
class AdminCheck:
    """Checks whether authors are admins; a "no" is remembered for 30 seconds."""

    admin_ids: Collection[str]
    is_platform_admin: Callable[[Request], Awaitable[bool]]
    """Asks the platform whether somebody outside `admin_ids` is an admin."""
    clock: Clock
    chat_settings: ChatSettings
    _: KW_ONLY
    reveals_presets_in_private: bool = True
    """Whether everybody sees prompts in a private chat."""
    shows_prompts_in_groups: bool = True
    """Whether the admins of a server or group see prompts there. Anybody can add the bot to their
    own group and be its admin."""
    press_timeout_seconds: float = _PRESS_TIMEOUT_SECONDS
    """How long the platform may take to say whether somebody who pressed a button is an admin."""
    audit_log: AuditLog | None = None
    """Records what admins do to others' messages; None: nothing is recorded."""

    def __post_init__(self) -> None:
        self._admin_checks = BoundedDict[tuple[str, str], tuple[float, bool]](_MAX_CACHED_CHECKS)
        """By author and chat: when the platform's answer expires, and whether it was "yes"."""

    async def is_admin(self, incoming: Request) -> bool:
        """Return whether the author is an admin. False if the platform did not answer."""
        return bool(await self.find_admin_status(incoming))

    async def was_recently_admin(self, incoming: Request) -> bool:
        """Return whether the author is an admin, or was one in the last 30 seconds."""
        expires_at, was_admin = self._admin_checks.get(_admin_cache_key(incoming), (0.0, False))
        is_cached_admin = was_admin and expires_at > self.clock.monotonic()
        return is_cached_admin or await self.is_admin(incoming)

    async def find_admin_status(self, incoming: Request) -> bool | None:
        """Return whether the author is an admin; None if the platform did not answer."""
        # The person who pressed a button waits for this, and so do later events.
        seconds = self.press_timeout_seconds if isinstance(incoming, ButtonPress) else None
        try:
            async with asyncio.timeout(seconds):
                return await self._ask_if_admin(incoming)
        except (PlatformError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            _log.warning("admin_unknown", by=incoming.author.id, reason=reason)
            return None

    async def _ask_if_admin(self, incoming: Request) -> bool:
        if incoming.author.id in self.admin_ids:
            return True
        if writes_as_group(incoming):
            was_admin = await self.is_platform_admin(incoming)
            return was_admin and await self._accepts_anonymous_admins(incoming.scopes)
        if incoming.author_is_admin is not None:  # the event itself says so
            return await self.is_platform_admin(incoming)
        cache_key, now = _admin_cache_key(incoming), self.clock.monotonic()
        expires_at, was_admin = self._admin_checks.get(cache_key, (now, True))
        if expires_at > now and not was_admin:
            return False
        is_admin = await self.is_platform_admin(incoming)
        self._admin_checks[cache_key] = now + _CHECK_CACHE_SECONDS, is_admin
        return is_admin

    async def _accepts_anonymous_admins(self, scopes: Sequence[str]) -> bool:
        return await self.chat_settings.resolve(scopes, _ANONYMOUS_ADMINS_KEY) is not None

    @admin_command(
        "settings anonymous",
        marked("choose whether anonymous Telegram admins count as admins here (admins)"),
        CommandOption("value", marked("on or off"), choices=("on", "off")),
    )
    async def _set_anonymous_admins(self, request: CommandRequest) -> CommandResult:
        action = translatable("allow admins to write anonymously")
        await self.require_admin(request.incoming, action, refuses_anonymous=True)
        setting_value = "on" if request.argument == "on" else None
        await request.store(self.chat_settings, request.scope, _ANONYMOUS_ADMINS_KEY, setting_value)
        text = translatable("Admins who write anonymously do not count as admins here.")
        if await self._accepts_anonymous_admins(request.incoming.scopes):
            text = translatable(
                "Admins who write anonymously now count as admins here, except for actions that"
                " cannot be undone."
            )
        return CommandResult(text, changes_channel=True)

    async def may_see_prompts(self, message: IncomingMessage) -> bool:
        """Return whether the author may see the presets' prompts."""
        shows_prompts_here = (
            self.reveals_presets_in_private if message.is_private else self.shows_prompts_in_groups
        )
        return message.author.id in self.admin_ids or (
            shows_prompts_here and await self.is_admin(message)
        )

    async def require_prompt_access(self, message: IncomingMessage, action: str) -> None:
        """Raise `PrivateError` unless the author may see prompts."""
        await self.require_admin(message, action)
        if not await self.may_see_prompts(message):
            text = translatable(
                "Only the operators of this bot, the people in TROUPE_ADMINS, can {action}.",
                action=action,
            )
            raise PrivateError(text)

    async def record_admin_action(self, incoming: Request, audit_name: str) -> None:
        """Record an admin's action in the audit log, without any message text."""
        if self.audit_log is not None and not incoming.is_private:
            # Not the conversation: the key of a personal history contains the person's id.
            channel, person = incoming.address.channel, incoming.author.id
            await self.audit_log.record(person, audit_name, channel)

    async def require_admin(
        self,
        incoming: Request,
        action: str,
        *,
        refuses_anonymous: bool = False,
        audit_name: str | None = None,
    ) -> None:
        """Raise `PrivateError` unless the author is an admin. The request is logged.

        With `refuses_anonymous`, anonymous admins are refused, because the action cannot be undone.
        `audit_name` is a verb and a noun for the audit log. It is recorded before the action, and
        again if the action is repeated after a crash.
        """
        is_admin = await self.find_admin_status(incoming)
        author_id, conversation = incoming.author.id, incoming.address.conversation
        _log.info(
            "admin_asked_for", what=action, by=author_id, in_=conversation, allowed=bool(is_admin)
        )
        if is_admin is None:
            raise PrivateError(unknown_admin_notice(incoming, action))
        is_anonymous = writes_as_group(incoming)
        if not is_admin:
            text = translatable("Only an admin can {action}.", action=action)
            raise PrivateError(join_texts([text, _ANONYMOUS_HINT], " ") if is_anonymous else text)
        if is_anonymous and refuses_anonymous:
            text = translatable(
                "Only an admin who writes under their own name can {action}.", action=action
            )
            raise PrivateError(text)
        if audit_name is not None:
            await self.record_admin_action(incoming, audit_name)


def _admin_cache_key(incoming: Request) -> tuple[str, str]:
    return incoming.author.id, incoming.address.lane


def unknown_admin_notice(incoming: Request, action: str) -> Text:
    """Return a notice that the bot could not check whether the author is an admin."""
    return translatable(
        "Only an admin can {action}, and I could not check with {platform} whether you are"
        " one. Please try again in a minute.",
        action=action,
        platform=incoming.address.platform.capitalize(),
    )
