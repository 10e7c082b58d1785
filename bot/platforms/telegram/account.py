"""Set up a Telegram bot: check its account and privacy mode, and find its first admin with a code.

See https://core.telegram.org/bots/api#getme and #getupdates.
"""

import asyncio
from contextlib import suppress
from typing import Any

import bot.platforms.telegram.model_building  # noqa: F401 # before anything imports aiogram

# isort: split

from aiogram.methods import GetMe, SendMessage
from typing_extensions import override

from bot.errors import PlatformError, PlatformFatal, Refused, SettingsError, Unreachable
from bot.platforms.spec import AccountSetup, BotAccount, CodeInstructions
from bot.platforms.telegram import api
from bot.platforms.telegram.settings import TelegramSettings
from bot.runtime.clock import SystemClock
from bot.texts.text import error_text, translatable

_POLL_SECONDS = 25
_POLL_PAUSE_SECONDS = 1.0
_MAX_UPDATES_PER_CALL = 100  # that one call returns
_PRIVACY_ON_NOTE = translatable(
    "privacy mode is on: in groups, the bot receives only commands, mentions and replies; to change"
    " that, send /setprivacy to @BotFather, or make the bot an admin of the group"
)
_PRIVACY_OFF_NOTE = translatable("privacy mode is off: in groups, the bot receives every message")
_NO_GROUPS_NOTE = translatable(
    "the bot cannot be added to groups; to change that, send /setjoingroups to @BotFather"
)


class TelegramAccount(AccountSetup):
    token_source = translatable("@BotFather in Telegram: send /newbot")

    def __init__(self, settings: TelegramSettings) -> None:
        self._settings = settings
        self._cached_api: api.BotApi | None = None

    @property
    def _api(self) -> api.BotApi:
        if self._cached_api is None:
            try:
                self._cached_api = api.BotApi(self._settings, SystemClock())
            except SettingsError as error:
                raise PlatformFatal(error_text(error)) from None
        return self._cached_api

    @override
    async def inspect(self) -> BotAccount:
        try:
            bot_user = await self._api.call(GetMe())
        except Refused:
            raise api.token_rejected_error() from None
        notes = [_PRIVACY_OFF_NOTE if bot_user.can_read_all_group_messages else _PRIVACY_ON_NOTE]
        if bot_user.can_join_groups is False:
            notes.append(_NO_GROUPS_NOTE)
        name, link_title = bot_user.username, translatable("open a chat with it")
        return BotAccount(f"@{name}", f"https://t.me/{name}", link_title, tuple(notes))

    @override
    def code_instructions(self, account: BotAccount, code: str) -> CodeInstructions:
        return CodeInstructions(
            translatable(
                "Send {code} to {name} in a private chat, or open this link and press Start:",
                code=code,
                name=account.name,
            ),
            f"{account.link}?start={code}",
        )

    @override
    async def wait_for_code(self, code: str) -> str:
        while True:
            updates = await self._get_updates()
            for update in updates:
                match update:
                    case {
                        "message": {
                            "text": str(text),
                            "from": {"id": int(person)},
                            "chat": {"id": int(chat), "type": "private"},
                        }
                    } if code in text.split():
                        await self._thank_and_confirm(update["update_id"], updates, chat)
                        return str(person)
            if len(updates) >= _MAX_UPDATES_PER_CALL:
                raise Refused(
                    translatable(
                        "more than 100 messages are waiting for this bot; start Troupe once to"
                        " receive them, or set TROUPE_ADMINS yourself"
                    )
                )
            # Without a pause, the same unread messages would be returned again and again.
            await asyncio.sleep(_POLL_PAUSE_SECONDS if updates else 0)

    @override
    async def close(self) -> None:
        if self._cached_api is not None:
            await self._cached_api.close()

    async def _get_updates(self, **fields: object) -> list[dict[str, Any]]:
        fields = {"timeout": _POLL_SECONDS, "allowed_updates": ["message"], **fields}
        seconds = _POLL_SECONDS + api.CALL_TIMEOUT_SECONDS
        try:
            updates = await self._api.send("getUpdates", fields, seconds)
        except api.PollingConflict:
            raise Unreachable(
                translatable(
                    "another process is receiving this bot's messages; stop it (is Troupe"
                    " running?), or delete the bot's webhook"
                )
            ) from None
        return api.decode_result(updates, list[dict[str, Any]])

    async def _thank_and_confirm(
        self, update_id: int, updates: list[dict[str, Any]], chat_id: int
    ) -> None:
        """Thank the sender; mark the update with the code as read if it is the oldest one."""
        if updates[0]["update_id"] == update_id:
            await self._get_updates(offset=update_id + 1, timeout=0, limit=1)
        thanks = SendMessage(chat_id=chat_id, text="Thank you! You are now an admin of this bot.")
        with suppress(PlatformError):  # the terminal also reports the success
            await self._api.call(thanks)
