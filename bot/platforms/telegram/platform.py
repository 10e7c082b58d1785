"""The Telegram platform: receive by polling or webhook, and acknowledge stored updates."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import bot.platforms.telegram.model_building  # noqa: F401 # before anything imports aiogram

# isort: split

import msgspec
import structlog
from aiogram.enums import ChatMemberStatus
from aiogram.methods import AnswerCallbackQuery, DeleteWebhook, GetMe, SetWebhook
from aiogram.types import Update, User
from pydantic import SecretStr
from typing_extensions import override

from bot import errors
from bot.chat.incoming import Address, ButtonPress, Incoming, MediaItem, Request, source_name
from bot.platforms.receiving import find_cursor_number, mark_if_late
from bot.platforms.spec import PlatformContext
from bot.platforms.telegram import api
from bot.platforms.telegram.command_menu import register_commands
from bot.platforms.telegram.incoming import (
    PRESS_KEY_PREFIX,
    UPDATE_TYPES,
    convert_update,
    parse_updates,
)
from bot.platforms.telegram.moved_chats import MovedChats
from bot.platforms.telegram.settings import TelegramSettings, is_webhook_secret
from bot.platforms.telegram.surface import TelegramSurface
from bot.ports import FileSource, Intake, Platform, PrivateChats, WebhookReceiver
from bot.runtime.secret_file import CHECK_INTERVAL_SECONDS, SecretFile
from bot.runtime.tasks import cancel_and_wait
from bot.telemetry.metrics import POLLING_CONFLICTS
from bot.telemetry.secret_masker import register_secrets
from bot.texts.text import Text, translatable

Response = TypeVar("Response")
StoreEvents = Callable[[Sequence[Incoming], Mapping[str, str]], Awaitable[None]]

_FIRST_RETRY_PAUSE_SECONDS = 0.25
_MAX_RETRY_PAUSE_SECONDS = 5.0
_MAX_CONFLICT_PAUSE_SECONDS = 30.0  # longer, so that the other poller gets a chance
_EARLY_RESPONSE_PAUSE_SECONDS = 1.0
_MAX_UPDATES = 100  # in one response; if it is full, more updates may be waiting
_SECONDS_BETWEEN_POLLS = 0.05  # so that one poll returns several messages
_MAX_ALERT_CHARS = 200
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 # the name of a header
_SECONDS_BETWEEN_WEBHOOK_UPDATES = 300.0

_log = structlog.get_logger(__name__)
_decode_update = msgspec.json.Decoder(dict[str, Any]).decode


class TelegramPlatform(Platform, FileSource, WebhookReceiver, PrivateChats):
    """A Telegram bot, with its private chats, groups and topics."""

    name = "telegram"
    connection_error: str | None = "not connected yet"

    def __init__(self, settings: TelegramSettings, context: PlatformContext) -> None:
        Update.model_rebuild()  # at the start, because this takes a tenth of a second
        self._context = context
        self._clock = context.clock
        self._api = api.BotApi(settings, context.clock)
        self._moved_chats = MovedChats(context.cursor_store, context.bot_id)
        self.surface = TelegramSurface(self._api, self._moved_chats, has_drafts=settings.drafts)
        self._settings = settings
        file = settings.webhook_secret_file
        self._secret_file = None if file is None else SecretFile(file, context.clock)
        self.webhook_path = settings.webhook_path
        self._bot: User | None = None  # the bot's account, once Telegram has returned it
        self._acknowledgment_tasks: set[asyncio.Task[None]] = set()
        self._cursor_name = offset_cursor_name(context.bot_id)
        self._has_polling_conflict = False
        self._is_catching_up = True
        self._poll_ended_early = False  # whether the last poll ended long before its timeout

    @override
    async def check(self) -> str:
        try:
            bot_user = await self._api.call(GetMe())
        except errors.Refused:
            raise api.token_rejected_error() from None
        return f"@{bot_user.username}, t.me/{bot_user.username}"

    @override
    async def close(self) -> None:
        await cancel_and_wait(self._acknowledgment_tasks)
        await self._api.close()

    @override
    async def run(self, intake: Intake) -> None:
        self._bot = bot = await self._retry_until_success(lambda: self._api.call(GetMe()))
        if self.webhook_path is not None:
            await register_commands(self._api, self._context.commands)
            await self._maintain_webhook()
        webhook_deletion = DeleteWebhook(drop_pending_updates=False)
        await self._retry_until_success(lambda: self._api.call(webhook_deletion))
        await register_commands(self._api, self._context.commands)
        await self._moved_chats.load(intake)
        offset = find_cursor_number(await intake.cursors(self._cursor_name), self._cursor_name)
        try:
            while True:
                updates = await self._retry_until_success(partial(self._get_updates, offset))
                parsed_updates = parse_updates(updates)
                cursors = dict(self._moved_chats.record_moves(parsed_updates))
                events = self._convert_updates(parsed_updates, bot)
                events = self._moved_chats.map_to_first_chats(events)
                if self._is_catching_up:
                    events = self._mark_late_events(events)
                self._is_catching_up = len(updates) >= _MAX_UPDATES
                # After a week without updates, Telegram may continue with a lower id.
                next_offset = updates[-1]["update_id"] + 1 if updates else offset
                if next_offset == offset:
                    if self._poll_ended_early:  # the server ignores the timeout or the offset
                        await self._clock.sleep(_EARLY_RESPONSE_PAUSE_SECONDS)
                    continue
                offset = next_offset
                cursors[self._cursor_name] = str(offset)
                store_events = partial(self._store_with_retries, intake)
                await self._store_and_acknowledge_presses(events, cursors, store_events)
                await asyncio.sleep(_SECONDS_BETWEEN_POLLS)
        finally:
            await cancel_and_wait(self._acknowledgment_tasks)

    async def _maintain_webhook(self) -> NoReturn:
        """Set the webhook when a secret changes, and every five minutes in case it has changed."""
        while True:
            secrets = self._read_token_and_secret()
            await self._retry_until_success(self._set_webhook)
            deadline = self._clock.monotonic() + _SECONDS_BETWEEN_WEBHOOK_UPDATES
            while self._read_token_and_secret() == secrets and self._clock.monotonic() < deadline:
                await self._clock.sleep(CHECK_INTERVAL_SECONDS)

    def _read_token_and_secret(self) -> tuple[str, str]:
        """Return the current token and webhook secret; read them again if their files changed."""
        token, file = self._api.token, self._secret_file
        if file is not None and file.reload_if_changed():
            register_secrets(file.secrets)
            if len(file.secrets) == 1 and is_webhook_secret(file.secrets[0]):
                secret_field = {"webhook_secret": SecretStr(file.secrets[0])}
                token.settings = token.settings.model_copy(update=secret_field)
                _log.info("webhook_secret_replaced")
            else:
                _log.error("webhook_secret_invalid")
        return token.read(), token.settings.webhook_token

    async def _set_webhook(self) -> None:
        try:
            await self._api.call(
                SetWebhook(
                    url=self._settings.webhook_url or "",
                    secret_token=self._read_token_and_secret()[1],
                    allowed_updates=UPDATE_TYPES,
                    drop_pending_updates=False,
                )
            )
        except errors.Refused as error:  # for example, Telegram cannot resolve the host name
            raise errors.Unreachable(f"{error}; check TROUPE_TELEGRAM__WEBHOOK_URL") from None

    @override
    def is_authentic_call(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call has the secret; compare bytes, because it may not be ASCII."""
        sent_secret = headers.get(_SECRET_HEADER, "").encode(errors="surrogateescape")
        _, secret = self._read_token_and_secret()
        return hmac.compare_digest(sent_secret, secret.encode())

    @override
    async def receive_call(self, body: bytes, intake: Intake) -> bool:
        try:
            update = api.decode_leniently(_decode_update, body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if self._bot is None:  # any process may receive calls, even one where `run` was not called
            self._bot = await self._api.call(GetMe())
        parsed_updates = parse_updates([update])
        cursors = self._moved_chats.record_moves(parsed_updates)
        events = self._convert_updates(parsed_updates, self._bot)
        # Another process may have stored a move.
        await self._moved_chats.load_moved_chats(events, intake)
        events = self._mark_late_events(self._moved_chats.map_to_first_chats(events))
        await self._store_and_acknowledge_presses(events, cursors, intake.receive)
        return True

    def _mark_late_events(self, events: Sequence[Incoming]) -> list[Incoming]:
        cutoff = self._clock.now() - self._context.answerable_seconds
        return [mark_if_late(one, cutoff) for one in events]

    async def _store_and_acknowledge_presses(
        self, events: Sequence[Incoming], cursors: Mapping[str, str], store_events: StoreEvents
    ) -> None:
        """Store events, except forbidden button presses; then acknowledge all presses."""
        presses = [one for one in events if isinstance(one, ButtonPress)]
        refusals: dict[str, str | None] = {}

        async def check(press: ButtonPress) -> None:
            refusals[press.external_key] = await self._context.find_press_refusal(press)

        if presses:
            async with asyncio.TaskGroup() as group:  # concurrently, as each may query Telegram
                for one in presses:
                    group.create_task(check(one))
        permitted_events = [one for one in events if refusals.get(one.external_key) is None]
        if permitted_events or cursors:
            await store_events(permitted_events, cursors)
        for key, refusal in refusals.items():
            self._acknowledge_press(key.removeprefix(PRESS_KEY_PREFIX), refusal)

    def _acknowledge_press(self, callback_query_id: str, text: str | None = None) -> None:
        async def answer_callback_query() -> None:
            acknowledgment = AnswerCallbackQuery(callback_query_id=callback_query_id)
            if text is not None:
                acknowledgment.text, acknowledgment.show_alert = text[:_MAX_ALERT_CHARS], True
            try:
                await self._api.call(acknowledgment)
            except errors.PlatformError as error:
                _log.info("telegram_button_press_not_acknowledged", reason=str(error))

        task = asyncio.create_task(answer_callback_query())
        self._acknowledgment_tasks.add(task)
        task.add_done_callback(self._acknowledgment_tasks.discard)

    async def _get_updates(self, offset: int | None) -> list[dict[str, Any]]:
        """Poll once; return unparsed updates, so that an invalid update does not affect others."""
        # After a failure, poll without waiting, to notice early that it is over. In a conflict,
        # wait, because each poll interrupts the other process.
        should_poll_at_once = self.connection_error is not None and not self._has_polling_conflict
        timeout_seconds = 0 if should_poll_at_once else self._settings.poll_seconds
        fields = {"offset": offset, "timeout": timeout_seconds, "allowed_updates": UPDATE_TYPES}
        seconds = self._settings.poll_seconds + api.CALL_TIMEOUT_SECONDS
        start = self._clock.monotonic()
        response = await self._api.send("getUpdates", fields, seconds)
        self._poll_ended_early = self._clock.monotonic() - start < timeout_seconds / 2
        raw_updates = api.decode_result(response, list[dict[str, Any]])
        return [one for one in raw_updates if isinstance(one.get("update_id"), int)]

    def _convert_updates(self, updates: Sequence[Update], bot: User) -> list[Incoming]:
        events = []
        bot_id, commands = self._context.bot_id, self._context.command_names
        for update in updates:
            incoming = convert_update(update, bot, bot_id, commands)
            if incoming is not None:
                events.append(incoming)
            elif update.callback_query is not None:  # a press on a message that is too old
                self._acknowledge_press(update.callback_query.id)
        return events

    async def _store_with_retries(
        self, intake: Intake, events: Sequence[Incoming], cursors: Mapping[str, str]
    ) -> None:
        await self._retry_until_success(lambda: intake.receive(events, cursors))

    async def _retry_until_success(self, call: Callable[[], Awaitable[Response]]) -> Response:
        failure_count = 0
        while True:
            try:
                response = await call()
            except errors.TokenRejected as error:
                await self._wait_for_token(error)
            except errors.Refused:
                await self._wait_for_token(api.token_rejected_error())
            except errors.PlatformError as error:
                has_conflict = isinstance(error, api.PollingConflict)
                POLLING_CONFLICTS.inc(has_conflict)
                self._set_connection_error(str(error), has_conflict=has_conflict)
                self._is_catching_up = True
                await self._clock.sleep(_retry_pause_seconds(error, failure_count))
                failure_count += 1
            except errors.StoreError as error:
                self._set_connection_error(f"messages cannot be stored: {error}")
                await self._clock.sleep(_retry_pause_seconds(error, failure_count))
                failure_count += 1
            else:
                self._set_connection_error(None)
                return response

    async def _wait_for_token(self, error: errors.TokenRejected) -> None:
        self.connection_error, self._has_polling_conflict = str(error), False
        self._is_catching_up = True
        await self._api.token.wait_for_retry(self._api.current_token, error)

    def _set_connection_error(self, reason: str | None, *, has_conflict: bool = False) -> None:
        if reason != self.connection_error:
            if reason is None:
                _log.info("telegram_connected")
            else:
                _log.warning("telegram_disconnected", reason=reason)
        self.connection_error, self._has_polling_conflict = reason, has_conflict

    @override
    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        return await self._api.download(item.source, max_bytes)

    @override
    async def find_private_chat(self, person_id: str) -> Address:
        number = person_id.removeprefix("telegram:")
        if not number.isdecimal():  # negative: the id of a chat as which someone writes
            raise errors.Refused(
                "this message was sent in the name of a group or channel, so its author is unknown"
            )
        return Address("telegram", number, bot_id=self._context.bot_id)

    @override
    async def private_chat_instructions(self, person_id: str) -> Text:
        if self._bot is None:
            self._bot = await self._api.call(GetMe())
        chat_link = f"t.me/{self._bot.username}"
        if not person_id.removeprefix("telegram:").isdecimal():
            return translatable(
                "My reply is for you alone. Write under your own name, open a chat with me"
                " ({link}), then ask again.",
                link=chat_link,
            )
        return translatable(
            "My reply is for you alone. Open a chat with me ({link}) and press Start, then ask"
            " again here.",
            link=chat_link,
        )

    @override
    async def is_admin(self, incoming: Request) -> bool:
        if incoming.author_is_admin is not None:
            return incoming.author_is_admin
        fields = {"user_id": int(incoming.author.id.removeprefix("telegram:"))}
        try:
            member = await self._moved_chats.call_in_chat(
                incoming.address,
                lambda chat: self._api.send("getChatMember", {"chat_id": chat.id, **fields}),
            )
        except api.MemberNotFound:
            return False
        status = api.decode_result(member, dict[str, Any])["status"]
        return status in {ChatMemberStatus.CREATOR, ChatMemberStatus.ADMINISTRATOR}


def offset_cursor_name(bot_id: str) -> str:
    """Return the name of the cursor that stores the id of the next update to receive."""
    return f"{source_name('telegram', bot_id)}:offset"


def _retry_pause_seconds(error: errors.TroupeError, failure_count: int) -> float:
    if isinstance(error, errors.RateLimited):
        return error.retry_after_seconds
    has_conflict = isinstance(error, api.PollingConflict)
    max_seconds = _MAX_CONFLICT_PAUSE_SECONDS if has_conflict else _MAX_RETRY_PAUSE_SECONDS
    return float(min(_FIRST_RETRY_PAUSE_SECONDS * 2 ** min(failure_count, 10), max_seconds))
