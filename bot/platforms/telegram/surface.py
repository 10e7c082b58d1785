"""Send, edit, delete and find messages on Telegram, without notifying anyone by mentions."""

import re
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import msgspec
import structlog
from aiogram.enums import MessageEntityType
from aiogram.methods import DeleteMessage, SendDocument
from aiogram.types import BufferedInputFile, MessageEntity
from typing_extensions import override

from bot.chat.incoming import Address, strip_skin_tone
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.errors import ContentRefused, MessageNotFound, Refused
from bot.platforms.telegram.api import (
    BotApi,
    NotEditable,
    NotModified,
    ReplyNotFound,
    decode_result,
)
from bot.platforms.telegram.incoming import format_ephemeral_id
from bot.platforms.telegram.limits import GROUP_LIMITS, PRIVATE_LIMITS
from bot.platforms.telegram.markup import (
    render_markdown,
    render_plain,
    render_with_fold,
    to_keyboard,
)
from bot.platforms.telegram.moved_chats import CurrentChat, MovedChats
from bot.ports import Surface
from bot.runtime.in_process import BoundedDict

_MAX_PROBES = 64
_MAX_PROBES_BACK = 16  # messages that may arrive between a search and the repeated send
_MAX_MISSING_IDS = 8  # in a row; after that, a group is assumed to have no further messages
_MAX_STORED_SEARCHES = 1000  # interrupted searches whose progress is kept

# https://core.telegram.org/bots/api#reactiontypeemoji
_ALLOWED_REACTIONS = (
    " ❤ 👍 👎 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚"
    " 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍"
    " 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷\u200d♂ 🤷 🤷\u200d♀ 😡 "
)
_EPHEMERAL_ID = re.compile(r"e(?P<person>\d+):(?P<id>\d+)")
_log = structlog.get_logger(__name__)
_ProbeResult: TypeAlias = Literal["match", "other message", "no message"]


class TelegramSurface(Surface):
    """Sends messages. Telegram has no idempotency keys, so `find` searches for lost messages."""

    def __init__(
        self, api: BotApi, moved_chats: MovedChats | None = None, *, has_drafts: bool = False
    ) -> None:
        self._api = api
        self._moved_chats = moved_chats or MovedChats()
        self._private_limits = replace(
            PRIVATE_LIMITS, has_drafts=has_drafts, convert_reaction=_to_reaction
        )
        self._group_limits = replace(
            GROUP_LIMITS,
            has_private_chats=True,
            fills_private_replies_by_edit=True,
            convert_reaction=_to_reaction,
        )
        link = "https://t.me/c/{chat}/{message}"
        self._supergroup_limits = replace(self._group_limits, message_link_template=link)
        self._can_hide_messages = True  # False once the server showed one to the whole chat
        self._search_progress = BoundedDict[tuple[int, str], int](_MAX_STORED_SEARCHES)
        """The last message id that an interrupted search has ruled out, by chat id and nonce."""

    @override
    def limits(self, address: Address) -> Limits:
        if _is_private(address):
            return self._private_limits
        return self._supergroup_limits if address.chat.startswith("-100") else self._group_limits

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if message.private_to is not None:
            return await self._send_ephemeral_placeholder(message, message.private_to)
        return await self._moved_chats.call_in_chat(
            message.address, lambda chat: self._send_to_chat(message, chat)
        )

    async def _send_to_chat(self, message: OutgoingMessage, chat: CurrentChat) -> str:
        topic_id = _topic_id(message.address)
        target: dict[str, Any] = {"chat_id": chat.id, "message_thread_id": topic_id}
        reply_to = chat.to_telegram_id(message.reply_to)
        if reply_to is not None:
            # Send the answer even if the question was deleted.
            reply_parameters = {"message_id": reply_to, "allow_sending_without_reply": True}
            target["reply_parameters"] = reply_parameters
        try:
            return chat.to_stored_id(await self._send_to_target(message, target))
        except ReplyNotFound:  # some servers ignore `allow_sending_without_reply`
            target.pop("reply_parameters", None)
            return chat.to_stored_id(await self._send_to_target(message, target))

    async def _send_ephemeral_placeholder(self, message: OutgoingMessage, reader_id: str) -> str:
        """Send a placeholder that only one reader sees, in response to a command or button press.

        Return its id. See https://core.telegram.org/bots/api#ephemeral-messages-and-commands. A
        server that does not know the parameters shows the placeholder to the whole chat; then it is
        deleted, and `Refused` is raised.
        """
        if message.interaction is None or message.file is not None or not self._can_hide_messages:
            raise Refused("Telegram cannot show this message to only one person")
        person, command = reader_id.partition(":")[2], _EPHEMERAL_ID.fullmatch(message.interaction)
        recipient_fields: dict[str, Any] = {"receiver_user_id": int(person)}
        target: dict[str, Any] = {"message_thread_id": _topic_id(message.address)}
        if command is not None:
            target["reply_parameters"] = {"ephemeral_message_id": int(command["id"])}
        else:
            recipient_fields["callback_query_id"] = message.interaction
        # Bot API 10.2 expects the fields themselves, and 10.3 expects them as parameters.
        target |= {**recipient_fields, "ephemeral_message_parameters": recipient_fields}

        async def send(chat: CurrentChat) -> str:
            fields = {"chat_id": chat.id, **target}
            response = await self._send_text("sendMessage", message.content, fields)
            sent_message = decode_result(response, _SentMessage)
            if sent_message.ephemeral_message_id is not None:
                return format_ephemeral_id(int(person), sent_message.ephemeral_message_id)
            self._can_hide_messages = False
            _log.warning("ephemeral_messages_unsupported")
            await self._api.call(DeleteMessage(chat_id=chat.id, message_id=sent_message.message_id))
            raise Refused("Telegram showed the message to the whole chat")

        return await self._moved_chats.call_in_chat(message.address, send)

    async def _change_ephemeral_message(
        self, address: Address, id_match: re.Match[str], content: MessageContent | None
    ) -> None:
        """Edit an ephemeral message, or delete it if `content` is None."""
        person, number = int(id_match["person"]), int(id_match["id"])
        ids = {"receiver_user_id": person, "ephemeral_message_id": number}

        async def call(chat: CurrentChat) -> None:
            target = {"chat_id": chat.id, **ids}
            if content is None:
                await self._api.send("deleteEphemeralMessage", target)
            else:
                await self._send_text("editEphemeralMessageText", content, target)

        await self._moved_chats.call_in_chat(address, call)

    async def _send_to_target(self, message: OutgoingMessage, target: Mapping[str, Any]) -> int:
        if message.file is not None:
            document = BufferedInputFile(message.file.text.encode(), message.file.name)
            request = SendDocument(document=document, **_render_caption(message.content), **target)
            return (await self._api.call(request)).message_id
        response = await self._send_text("sendMessage", message.content, target)
        return decode_result(response, _SentMessage).message_id

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        with suppress(NotModified):
            if ephemeral_match := _EPHEMERAL_ID.fullmatch(message_id):
                await self._change_ephemeral_message(address, ephemeral_match, content)
                return
            await self._moved_chats.call_in_chat(
                address,
                lambda chat: self._edit(chat.id, _require_current_id(chat, message_id), content),
            )

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        def to_deletion(chat: CurrentChat) -> DeleteMessage:
            return DeleteMessage(chat_id=chat.id, message_id=_require_current_id(chat, message_id))

        with suppress(MessageNotFound):
            if ephemeral_match := _EPHEMERAL_ID.fullmatch(message_id):
                await self._change_ephemeral_message(address, ephemeral_match, None)
                return
            await self._moved_chats.call_in_chat(
                address, lambda chat: self._api.call(to_deletion(chat))
            )

    @override
    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        async def set_reaction(chat: CurrentChat) -> None:
            target = {"chat_id": chat.id, "message_id": _require_current_id(chat, message_id)}
            reaction = [{"type": "emoji", "emoji": emoji}]
            await self._api.send("setMessageReaction", {**target, "reaction": reaction})

        await self._moved_chats.call_in_chat(address, set_reaction)

    @override
    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        text, entities = _render_text(content)
        target = {"chat_id": int(address.chat), "message_thread_id": _topic_id(address)}
        # After the stop button, keep the draft until the final message replaces it.
        stop_fields = {"can_stop": True, "keep_on_stop": True}
        fields = {**target, **stop_fields, "draft_id": draft_id, "text": text, "entities": entities}
        await self._api.send("sendMessageDraft", fields)

    @override
    async def typing(self, address: Address) -> None:
        fields = {"message_thread_id": _topic_id(address), "action": "typing"}
        await self._moved_chats.call_in_chat(
            address, lambda chat: self._api.send("sendChatAction", {"chat_id": chat.id, **fields})
        )

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Search for a message: try to edit messages with unknown ids so that they get its text.

        Bots cannot list messages, but Telegram's answer to an edit shows whether a message is the
        bot's, another person's or missing. Messages are sent in order, so the search starts after
        the newest known message. In groups, ids are consecutive, so a gap ends the search; private
        chats share one sequence of ids, so the search ends after 64 tries
        (docs/sources.md#telegram). After a rate limit, the next search continues where this one
        stopped.

        With `search.copy_id`, search for another copy of a known message.
        """
        return await self._moved_chats.call_in_chat(
            message.address, lambda chat: self._search_chat(message, chat, search)
        )

    async def _search_chat(
        self, message: OutgoingMessage, chat: CurrentChat, search: MessageSearch
    ) -> str | None:
        telegram_ids = map(chat.to_telegram_id, search.excluded_ids)
        known_ids = {one for one in telegram_ids if one is not None}
        oldest_id = chat.to_telegram_id(search.after) or 0
        if search.copy_id is None:
            after_id = max([oldest_id, *known_ids])
            found_id = await self._search_forward(message, chat.id, after_id, known_ids)
        elif (twin_id := chat.to_telegram_id(search.copy_id)) is None:
            return None  # the message is in the old group, which became a supergroup
        else:
            found_id = await self._find_other_copy(message, chat.id, oldest_id, known_ids, twin_id)
        return None if found_id is None else chat.to_stored_id(found_id)

    async def _search_forward(
        self, message: OutgoingMessage, chat: int, after_id: int, known_ids: Set[int]
    ) -> int | None:
        search_key = (chat, message.nonce)
        probed_id = max(after_id, self._search_progress.get(search_key, 0))
        probe_count = missing_id_count = 0
        ids_have_gaps = _is_private(message.address)
        while probe_count < _MAX_PROBES and (ids_have_gaps or missing_id_count < _MAX_MISSING_IDS):
            probed_id += 1
            if probed_id in known_ids:
                missing_id_count = 0
                continue
            probe_count += 1
            match await self._probe_by_edit(message, chat, probed_id):
                case "match":
                    self._search_progress.pop(search_key, None)
                    return probed_id
                case "other message":
                    missing_id_count = 0
                    self._search_progress[search_key] = probed_id
                case "no message":
                    missing_id_count += 1
        self._search_progress.pop(search_key, None)
        return None

    async def _find_other_copy(
        self, message: OutgoingMessage, chat: int, oldest_id: int, known_ids: Set[int], twin_id: int
    ) -> int | None:
        """Search for a duplicate of the message `twin_id`: first after it, then before it."""
        found_id = await self._search_forward(message, chat, twin_id, known_ids)
        if found_id is not None:
            return found_id
        lower_bound = max([oldest_id, *(one for one in known_ids if one < twin_id)])
        if lower_bound == 0:  # the bot's older messages may be unknown
            return None
        for candidate in range(twin_id - 1, max(lower_bound, twin_id - 1 - _MAX_PROBES_BACK), -1):
            if await self._probe_by_edit(message, chat, candidate) == "match":
                return candidate
        return None

    async def _probe_by_edit(
        self, message: OutgoingMessage, chat: int, message_id: int
    ) -> _ProbeResult:
        try:
            if message.file is None:
                await self._edit(chat, message_id, message.content)
            else:
                target = {"chat_id": chat, "message_id": message_id}
                caption = _render_caption(message.content)
                await self._api.send("editMessageCaption", {**target, **caption})
        except NotModified:
            return "match"
        except NotEditable:
            return "other message"
        except MessageNotFound:
            return "no message"
        return "match"

    async def _edit(self, chat: int, message_id: int, content: MessageContent) -> None:
        target = {"chat_id": chat, "message_id": message_id}
        await self._send_text("editMessageText", content, target)

    async def _send_text(
        self, method: str, content: MessageContent, fields: Mapping[str, Any]
    ) -> msgspec.Raw:
        """Send or edit a message; if Telegram refuses its links, write out the URLs instead."""
        fields = {
            "link_preview_options": {"is_disabled": True},
            "reply_markup": to_keyboard(content.buttons, content.menus),
            **fields,
        }
        text, entities = _render_text(content)
        try:
            return await self._api.send(method, {"text": text, "entities": entities, **fields})
        except ContentRefused:
            if not any(one.type == MessageEntityType.TEXT_LINK for one in entities or ()):
                raise
        text, entities = _render_text(content, keep_links=False)
        return await self._api.send(method, {"text": text, "entities": entities, **fields})


def _to_reaction(text: str) -> str:
    """Return an emoji, without its skin tone, if bots can react with it, or else ""."""
    emoji = strip_skin_tone(text)
    return emoji if f" {emoji} " in _ALLOWED_REACTIONS and " " not in emoji else ""


def _is_private(address: Address) -> bool:
    return int(address.chat) > 0  # groups have negative ids


def _topic_id(address: Address) -> int | None:
    return None if address.thread is None else int(address.thread)


def _require_current_id(chat: CurrentChat, message_id: str) -> int:
    current_id = chat.to_telegram_id(message_id)
    if current_id is None:
        raise MessageNotFound("the message is in the old group, which became a supergroup")
    return current_id


def _render_caption(content: MessageContent) -> dict[str, Any]:
    """Return the fields of a file's caption, which may have at most 1,024 characters."""
    text, entities = _render_text(content)
    return {
        "caption": text,
        "caption_entities": entities,
        "reply_markup": to_keyboard(content.buttons, content.menus),
    }


def _render_text(
    content: MessageContent, *, keep_links: bool = True
) -> tuple[str, list[MessageEntity] | None]:
    text = content.text_with_name_line
    if content.is_plain:
        return render_plain(text), None
    if not content.thoughts:
        return render_markdown(text, keep_links=keep_links)
    return render_with_fold(text, f"💭 {content.thoughts}", keep_links=keep_links)


class _SentMessage(msgspec.Struct):
    message_id: int
    ephemeral_message_id: int | None = None
