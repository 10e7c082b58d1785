"""Answer on Telegram: plain text that pings nobody, and a search for what arrived unannounced."""

import re
from collections.abc import Set
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from aiogram.enums import ChatAction, MessageEntityType
from aiogram.methods import (
    DeleteMessage,
    EditMessageCaption,
    EditMessageText,
    SendChatAction,
    SendDocument,
    SendMessage,
)
from aiogram.types import BufferedInputFile, LinkPreviewOptions, MessageEntity, ReplyParameters

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutgoingMessage
from bot.errors import MessageNotFound
from bot.platforms.telegram.api import Api, NotEditable, NotModified

# Telegram lets edits and messages share one budget: about 1 a second in a private chat, 20 a
# minute in a group.
_PRIVATE = Limits(
    max_units=4096,
    unit="utf16",
    seconds_between_edits=1.2,
    typing_seconds=4,
    placeholder="…",
    calls_per_minute=60,  # "about one message a second", short bursts pass (Telegram's bot FAQ)
    burst=10,
)
_GROUP = replace(_PRIVATE, seconds_between_edits=3.5, calls_per_minute=20, burst=5)

_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
_MENTION = re.compile(r"(?<!\w)@[A-Za-z][A-Za-z0-9_]{2,31}")
_SPEAKER_LINE = re.compile(r"\*\*([^*\n]+)\*\*(?=\n)")
_MAX_ENTITIES = 100  # Telegram drops what is above
_MAX_PROBES = 64
_MAX_GAP = 8  # ids in a row that a group does not have: its end is reached


class _Found(Enum):
    OURS = auto()
    FOREIGN = auto()
    NOTHING = auto()


class TelegramSurface:
    """Telegram knows no key for a message, so `nonce` is unused: delivery opens with `…`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def limits(self, address: Address) -> Limits:
        return _PRIVATE if _is_private(address) else _GROUP

    async def send(self, message: OutgoingMessage) -> str:
        reply = None
        if message.reply_to is not None:
            # People delete what they asked; the answer is worth having all the same.
            reply = ReplyParameters(
                message_id=int(message.reply_to), allow_sending_without_reply=True
            )
        to: dict[str, Any] = {
            "chat_id": int(message.address.chat),
            "message_thread_id": _topic(message.address),
            "reply_parameters": reply,
        }
        if message.file is not None:
            document = BufferedInputFile(message.file.text.encode(), message.file.name)
            upload = SendDocument(document=document, **_captioned(message.text), **to)
            return str((await self._api.call(upload)).message_id)
        saying = SendMessage(**_spoken(message.text), link_preview_options=_NO_PREVIEW, **to)
        return str((await self._api.call(saying)).message_id)

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        try:
            await self._api.call(_to_edit(address, int(message_id), text))
        except NotModified:
            return

    async def delete(self, address: Address, message_id: str) -> None:
        try:
            await self._api.call(
                DeleteMessage(chat_id=int(address.chat), message_id=int(message_id))
            )
        except MessageNotFound:
            return

    async def typing(self, address: Address) -> None:
        await self._api.call(
            SendChatAction(
                chat_id=int(address.chat),
                message_thread_id=_topic(address),
                action=ChatAction.TYPING,
            )
        )

    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        """Look for a message of ours by trying to give the unaccounted ids this text or caption.

        Telegram lists no messages to bots, but it answers an edit differently for a message of
        ours, of somebody else's and none. What is sent in a chat is sent in order, so the search
        starts behind the newest known message: an older one that nobody accounts for, in a topic
        perhaps, is not the one. In groups ids count up by one; private chats share one sequence
        over all chats of the bot, so there a long gap means nothing and only the number of tries
        is bounded. Both, and the wording of the answers, are modelled after the documentation and
        must be confirmed once against the real service.
        """
        candidate = max([int(after or 0), *map(int, known)])
        probes = gap = 0
        while probes < _MAX_PROBES and (gap < _MAX_GAP or _is_private(message.address)):
            candidate += 1
            if str(candidate) in known:
                gap = 0
                continue
            probes += 1
            match await self._probe(message, candidate):
                case _Found.OURS:
                    return str(candidate)
                case _Found.FOREIGN:
                    gap = 0
                case _Found.NOTHING:
                    gap += 1
        return None

    async def _probe(self, message: OutgoingMessage, message_id: int) -> _Found:
        edit = _to_edit if message.file is None else _to_caption_edit
        try:
            await self._api.call(edit(message.address, message_id, message.text))
        except NotModified:
            return _Found.OURS
        except NotEditable:
            return _Found.FOREIGN
        except MessageNotFound:
            return _Found.NOTHING
        return _Found.OURS


def _is_private(address: Address) -> bool:
    return int(address.chat) > 0  # groups have negative ids


def _topic(address: Address) -> int | None:
    return None if address.thread is None else int(address.thread)


def _to_edit(address: Address, message_id: int, text: str) -> EditMessageText:
    return EditMessageText(
        chat_id=int(address.chat),
        message_id=message_id,
        **_spoken(text),
        link_preview_options=_NO_PREVIEW,
    )


def _to_caption_edit(address: Address, message_id: int, text: str) -> EditMessageCaption:
    return EditMessageCaption(chat_id=int(address.chat), message_id=message_id, **_captioned(text))


def _captioned(text: str) -> dict[str, Any]:
    """The same beside a file, where Telegram takes 1,024 characters."""
    said = _spoken(text)
    return {"caption": said["text"], "caption_entities": said["entities"]}


def _spoken(text: str) -> dict[str, Any]:
    """A text with its entities; a first line `**Nora**` says who speaks, and is set in bold."""
    found = _SPEAKER_LINE.match(text)
    if found is None:
        return {"text": text, "entities": without_pings(text)}
    name = found[1]
    plain = name + text[found.end() :]
    bold = MessageEntity(type=MessageEntityType.BOLD, offset=0, length=_utf16_units(name))
    return {"text": plain, "entities": [bold, *(without_pings(plain) or ())][:_MAX_ENTITIES]}


def without_pings(text: str) -> list[MessageEntity] | None:
    """Set every `@name` as code: Telegram makes no mention of it, and the text stays as it is."""
    entities = [
        MessageEntity(
            type=MessageEntityType.CODE,
            offset=_utf16_units(text[: found.start()]),
            length=len(found[0]),
        )
        for found in _MENTION.finditer(text)
    ]
    return entities[:_MAX_ENTITIES] or None


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
