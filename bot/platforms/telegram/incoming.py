"""Convert Telegram's updates to `Incoming` values, which contain no types of aiogram."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from aiogram import types
from aiogram.enums import ChatMemberStatus, ChatType, ContentType, MessageEntityType
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    Incoming,
    IncomingMessage,
    MediaItem,
    MediaKind,
    MessageEdit,
    Person,
    Quote,
    Reaction,
    ReactionChange,
    WakeReason,
    parse_reaction,
)
from bot.platforms.telegram.markup import read_callback_data

UPDATE_TYPES = [
    *("message", "edited_message", "callback_query", "my_chat_member"),
    "stopped_message_generation",
    "message_reaction",  # sent only in private chats and in groups where the bot is an admin
]
PRESS_KEY_PREFIX = "cb"
"""The prefix of a button press's external key; the callback query's id follows it."""

_log = structlog.get_logger(__name__)
_CONVERSION_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
_AUTO_EDITED_KINDS = frozenset({MediaKind.LOCATION, MediaKind.OTHER})
_MISSING_FIELD_DEFAULTS = {"persistent_id": "", "allows_revoting": False, "members_only": False}
"""Fields of polls that aiogram requires but older Bot API servers do not send."""
_IN_CHAT_STATUSES = frozenset({ChatMemberStatus.MEMBER, ChatMemberStatus.ADMINISTRATOR})
_LEFT_CHAT_STATUSES = frozenset({ChatMemberStatus.LEFT, ChatMemberStatus.KICKED})
_MEDIA_KINDS_BY_CONTENT_TYPE: Mapping[str, MediaKind] = {
    **dict.fromkeys((ContentType.PHOTO, ContentType.LIVE_PHOTO), MediaKind.IMAGE),
    **dict.fromkeys((ContentType.VIDEO, ContentType.VIDEO_NOTE), MediaKind.VIDEO),
    **dict.fromkeys((ContentType.STICKER, ContentType.DICE), MediaKind.STICKER),
    **dict.fromkeys((ContentType.LOCATION, ContentType.VENUE), MediaKind.LOCATION),
    ContentType.ANIMATION: MediaKind.ANIMATION,
    ContentType.AUDIO: MediaKind.AUDIO,
    ContentType.CONTACT: MediaKind.CONTACT,
    ContentType.DOCUMENT: MediaKind.FILE,
    ContentType.VOICE: MediaKind.VOICE,
    **dict.fromkeys(
        (
            *(ContentType.CHAT_SHARED, ContentType.CHECKLIST, ContentType.GAME, ContentType.GIFT),
            *(ContentType.GIVEAWAY, ContentType.GIVEAWAY_WINNERS, ContentType.INVOICE),
            *(ContentType.PAID_MEDIA, ContentType.PASSPORT_DATA, ContentType.RICH_MESSAGE),
            *(ContentType.STORY, ContentType.UNIQUE_GIFT, ContentType.USERS_SHARED),
            ContentType.WEB_APP_DATA,
        ),
        MediaKind.OTHER,
    ),
}
"""The kinds of attachments by content type; other types of messages are service messages."""


def parse_updates(raw_updates: Iterable[dict[str, Any]]) -> list[types.Update]:
    """Parse updates; leave out parts that this version of aiogram cannot parse."""
    return [update for update in map(_parse_update, raw_updates) if update is not None]


def _parse_update(raw_update: dict[str, Any]) -> types.Update | None:
    """Parse an update, dropping and logging invalid values; return None if nothing is left."""
    dropped_fields: list[str] = []
    while True:
        try:
            update = types.Update.model_validate(raw_update)
        except ValidationError as error:
            # Log only the fields' names, because the error quotes what people wrote.
            validation_errors = error.errors(include_url=False)
            addition_results = [_add_missing_field(raw_update, one) for one in validation_errors]
            if any(addition_results):
                continue
            bad_paths = {_find_invalid_path(raw_update, one) for one in validation_errors}
            max_depth = max(map(len, bad_paths))
            if max_depth == 0:  # not even the update's id is valid
                _log.error("telegram_update_skipped", reason=type(error).__name__)
                return None
            for path in sorted((one for one in bad_paths if len(one) == max_depth), reverse=True):
                _drop_value(raw_update, path)
                dropped_fields.append(".".join(map(str, path)))
        else:
            if dropped_fields:
                number = update.update_id
                _log.warning("telegram_parts_skipped", update_id=number, fields=dropped_fields)
            return update


def _find_invalid_path(raw_update: dict[str, Any], error: ErrorDetails) -> tuple[str | int, ...]:
    """Return the path of an invalid value, without the names that pydantic adds for unions."""
    path: list[str | int] = []
    value: Any = raw_update
    for key in error["loc"]:
        match value:
            case dict() if key in value:
                value = value[key]
            case list() if isinstance(key, int) and key < len(value):
                value = value[key]
            case _:
                continue
        path.append(key)
    if error["type"] == "literal_error":  # an object of an unknown kind: drop all of it
        path.pop()
    return tuple(path)


def _value_at_path(raw_update: dict[str, Any], path: Iterable[str | int]) -> Any:
    value: Any = raw_update
    for key in path:
        value = value[key]
    return value


def _add_missing_field(raw_update: dict[str, Any], error: ErrorDetails) -> bool:
    """Add a missing field that older servers do not send; return whether it was added."""
    name = error["loc"][-1]
    if error["type"] != "missing" or name not in _MISSING_FIELD_DEFAULTS:
        return False
    parent = _value_at_path(raw_update, _find_invalid_path(raw_update, error))
    if not isinstance(parent, dict) or name in parent:
        return False
    parent[name] = _MISSING_FIELD_DEFAULTS[name]
    return True


def _drop_value(raw_update: dict[str, Any], path: Sequence[str | int]) -> None:
    *parent_path, key = path
    parent = _value_at_path(raw_update, parent_path)
    if key == "forward_origin":  # it must stay a forward, which does not address the bot
        parent[key] = {"type": "hidden_user", "sender_user_name": "", "date": 0}
    else:
        del parent[key]


def convert_update(
    update: types.Update, bot: types.User, bot_id: str, commands: Container[str]
) -> Incoming | None:
    """Convert an update, or return None if it is not for the bot; log and skip a malformed one."""
    try:
        return to_incoming(update, bot, bot_id, commands)
    except _CONVERSION_ERRORS as error:
        reason = type(error).__name__  # the error's text may quote what people wrote
        _log.error("telegram_update_skipped", update_id=update.update_id, reason=reason)
        return None


def to_incoming(
    update: types.Update, bot: types.User, bot_id: str = "", commands: Container[str] | None = None
) -> Incoming | None:
    """Convert an update to an event, or return None for messages of bots and service messages."""
    if update.message is not None:
        return to_incoming_message(update.message, bot, bot_id, commands)
    if update.edited_message is not None:
        return _to_message_edit(update.edited_message, update.update_id, bot, bot_id)
    if update.callback_query is not None:
        return _to_button_press(update.callback_query, bot_id)
    if update.my_chat_member is not None:
        return _to_chat_join(update.my_chat_member, bot_id)
    if update.stopped_message_generation is not None:
        return _to_stop_command(update.stopped_message_generation, update.update_id, bot_id)
    if update.message_reaction is not None:
        return _to_reaction_change(update.message_reaction, update.update_id, bot_id)
    return None


def to_incoming_message(
    message: types.Message,
    bot: types.User,
    bot_id: str = "",
    commands: Container[str] | None = None,
) -> IncomingMessage | None:
    """Convert a message, or return None for messages of bots and service messages.

    In a group, a command that is not in `commands` is not for this bot, unless it names the bot.
    Posts that Telegram forwards from a linked channel are ignored, except for commands, which are
    then refused and logged. Direct messages to a channel are ignored, because each of their topics
    is private, and answers would need the topic's id
    (https://core.telegram.org/bots/api#sendmessage).
    """
    if message.chat.is_direct_messages:
        return None
    content = message.text or message.caption or ""
    attachments, whole_text = message_attachments(message), message_text(message)
    author = _to_person(message)
    if author is None or not (whole_text or attachments):
        return None
    is_forward = message.forward_origin is not None and not message.is_automatic_forward
    if is_forward:
        wake_reason, text = _wake_and_forward_text(message, whole_text)
    else:
        wake_reason, text = _wake_reason_and_text(message, content, whole_text, bot, commands)
    number, person = message.ephemeral_message_id, message.from_user
    ephemeral_id = (
        None if number is None else format_ephemeral_id(person.id if person else 0, number)
    )
    if (message.is_automatic_forward or ephemeral_id) and wake_reason is not WakeReason.COMMAND:
        return None  # only its author sees it, and an answer would reveal it
    address = _to_address(message, bot_id)
    key = (
        f"{ephemeral_id}@{message.date.timestamp():.0f}"
        if ephemeral_id
        else str(message.message_id)
    )
    original_author = _original_author(message.forward_origin)
    return IncomingMessage(
        address=address,
        external_key=f"{message.chat.id}:{key}",
        message_id=None if ephemeral_id else str(message.message_id),
        interaction=ephemeral_id,
        author=author,
        text=text,
        at=message.date,
        wake=wake_reason,
        scopes=list_scopes(address),
        author_is_admin=_is_by_admin(message),
        is_private=message.chat.type == ChatType.PRIVATE,
        quote=_to_quote(message, bot),
        attachments=attachments,
        album=message.media_group_id,
        channel_title=message.chat.title or "",
        mentions=_list_mentions(message, content, bot),
        locale=message.from_user.language_code if message.from_user else None,
        is_forward=is_forward,
        forwarded_from=original_author.id if original_author is not None else "",
    )


def format_ephemeral_id(person_id: int, message_id: int) -> str:
    """Return our id of an ephemeral message; Telegram's number is unique only per person."""
    return f"e{person_id}:{message_id}"


def _to_message_edit(
    message: types.Message, update_id: int, bot: types.User, bot_id: str
) -> MessageEdit | None:
    incoming = to_incoming_message(message, bot, bot_id)
    if incoming is None or incoming.interaction is not None or message.poll is not None:
        return None
    if not incoming.text and all(item.kind in _AUTO_EDITED_KINDS for item in incoming.attachments):
        return None  # not an edit by a person, but a moving live location or a checked item
    # Two edits in the same second have the same date, but different update ids.
    key = f"{incoming.external_key}:e{update_id}"
    at = datetime.fromtimestamp(message.edit_date, UTC) if message.edit_date else message.date
    return MessageEdit(key, incoming, at)


def _to_button_press(query: types.CallbackQuery, bot_id: str) -> ButtonPress | None:
    message = query.message
    if message is None or query.data is None:
        return None
    address = _to_address(message, bot_id)
    data, values = read_callback_data(query.data)
    return ButtonPress(
        address=address,
        external_key=f"{PRESS_KEY_PREFIX}{query.id}",
        message_id=str(message.message_id),
        shown_at=message.date if isinstance(message, types.Message) else None,
        is_ephemeral=getattr(message, "ephemeral_message_id", None) is not None,
        author=_account_to_person(query.from_user),
        data=data,
        at=datetime.now(UTC),  # the update contains no time
        scopes=list_scopes(address),
        values=values,
        author_is_admin=_is_everyone_admin(message.chat),
        is_private=message.chat.type == ChatType.PRIVATE,
        interaction=query.id,
        locale=query.from_user.language_code,
    )


def _to_reaction_change(
    change: types.MessageReactionUpdated, update_id: int, bot_id: str
) -> ReactionChange | None:
    """Convert a reaction; return None if we do not use its emoji, or if its author is anonymous."""
    old_reactions = _list_reactions(change.old_reaction)
    new_reactions = _list_reactions(change.new_reaction)
    changed_reactions = [one for one in new_reactions if one not in old_reactions] or [
        one for one in old_reactions if one not in new_reactions
    ]
    if not changed_reactions or change.user is None:
        return None
    address = Address("telegram", str(change.chat.id), bot_id=bot_id)
    return ReactionChange(
        address=address,
        external_key=f"{change.chat.id}:{change.message_id}:r{update_id}",
        message_id=str(change.message_id),
        author=_account_to_person(change.user),
        reaction=changed_reactions[-1],
        at=change.date,
        scopes=list_scopes(address),
        is_removed=changed_reactions[-1] not in new_reactions,
        author_is_admin=_is_everyone_admin(change.chat),
        is_private=change.chat.type == ChatType.PRIVATE,
    )


def _list_reactions(reaction_types: Sequence[types.ReactionTypeUnion]) -> list[Reaction]:
    emojis = (one.emoji for one in reaction_types if isinstance(one, types.ReactionTypeEmoji))
    return [one for emoji in emojis if (one := parse_reaction(emoji)) is not None]


def _to_chat_join(change: types.ChatMemberUpdated, bot_id: str) -> ChatJoin | None:
    """Convert the bot's membership change if the bot joined a group; otherwise return None."""
    has_joined = (
        change.old_chat_member.status in _LEFT_CHAT_STATUSES
        and change.new_chat_member.status in _IN_CHAT_STATUSES
    )
    if not has_joined or change.chat.type not in {ChatType.GROUP, ChatType.SUPERGROUP}:
        return None
    address = Address("telegram", str(change.chat.id), bot_id=bot_id)
    return ChatJoin(
        address=address,
        external_key=f"join:{change.chat.id}:{int(change.date.timestamp())}",
        author=_account_to_person(change.from_user),
        at=change.date,
        scopes=list_scopes(address),
        locale=change.from_user.language_code,
    )


def _to_stop_command(
    event: types.MessageGenerationStopped, update_id: int, bot_id: str
) -> IncomingMessage:
    """Convert a press of the stop button, which Telegram shows below drafts, to a /stop command."""
    chat, thread = event.chat, event.message_thread_id
    address = Address("telegram", str(chat.id), str(thread) if thread else None, bot_id)
    return IncomingMessage(
        address=address,
        external_key=f"{chat.id}:stop{update_id}",
        message_id=None,
        author=_account_to_person(chat),  # only private chats have drafts
        text="/stop",
        at=datetime.now(UTC),  # the update contains no time
        wake=WakeReason.COMMAND,
        scopes=list_scopes(address),
        author_is_admin=True,
        is_private=True,
    )


def _to_address(message: types.MaybeInaccessibleMessageUnion, bot_id: str) -> Address:
    # In groups without topics, replies have a thread id, too, but no separate history.
    topic_id = None
    if isinstance(message, types.Message) and message.is_topic_message:
        topic_id = str(message.message_thread_id)
    return Address("telegram", str(message.chat.id), topic_id, bot_id)


def list_scopes(address: Address) -> tuple[str, ...]:
    """Return the setting scopes of a chat or topic, narrowest first."""
    return (address.lane,) if address.thread is None else (address.conversation, address.lane)


def _to_person(message: types.Message) -> Person | None:
    """Return a message's author (a person, or a chat that someone writes as), or None for bots."""
    if message.sender_chat is not None:
        return _account_to_person(message.sender_chat)
    user = message.from_user
    return None if user is None or user.is_bot else _account_to_person(user)


def _account_to_person(account: types.User | types.Chat) -> Person:
    return Person(f"telegram:{account.id}", account.full_name)


def _is_by_admin(message: types.Message) -> bool | None:
    if message.sender_chat is not None:
        # Only admins can write as the group, but anybody may write as a channel.
        return message.sender_chat.id == message.chat.id
    return _is_everyone_admin(message.chat)


def _is_everyone_admin(chat: types.Chat) -> bool | None:
    return True if chat.type == ChatType.PRIVATE else None


def _to_quote(message: types.Message, bot: types.User) -> Quote | None:
    replied_message = message.reply_to_message
    # Every message in a topic "replies" to the service message that opened the topic.
    if replied_message is not None and replied_message.forum_topic_created is not None:
        replied_message = None
    text_quote = message.quote
    quoted_text = insert_link_urls(text_quote.text, text_quote.entities) if text_quote else None
    if replied_message is None:  # it may be a quote from another chat
        origin = message.external_reply.origin if message.external_reply else None
        return None if quoted_text is None else Quote(_original_author(origin), None, quoted_text)
    user = replied_message.from_user
    author = _to_person(replied_message) or (_account_to_person(user) if user else None)
    original_author = _original_author(replied_message.forward_origin)
    return Quote(
        author,
        str(replied_message.message_id),
        message_text(replied_message) if quoted_text is None else quoted_text,
        message_attachments(replied_message),
        is_ours=user is not None and user.id == bot.id,
        forwarded_from=original_author.id if original_author else "",
    )


def _list_mentions(message: types.Message, content: str, bot: types.User) -> tuple[str, ...]:
    """Return the people mentioned, except the bot, by id or, if Telegram hides it, by user name."""
    return tuple(
        f"telegram:{entity.user.id}"
        if entity.user is not None
        else f"telegram:{_entity_text(entity, content).lower()}"
        for entity in _list_entities(message)
        if entity.type in {MessageEntityType.MENTION, MessageEntityType.TEXT_MENTION}
        and not _is_bot_mention(entity, content, bot)
    )


def _wake_and_forward_text(message: types.Message, content: str) -> tuple[WakeReason | None, str]:
    """Return a forwarded message's wake reason, and its text as a quote."""
    wake_reason = WakeReason.DM if message.chat.type == ChatType.PRIVATE else None
    if not content.strip():
        return wake_reason, ""
    name = " ".join(re.sub(r"[\[\]:]", " ", _original_author_name(message)).split())
    heading = f"[forwarded message from {name}]" if name else "[forwarded message]"
    return wake_reason, "\n".join([heading, *(f"> {line}" for line in content.splitlines())])


def _original_author(origin: types.MessageOriginUnion | None) -> Person | None:
    """Return the person who wrote a forwarded or quoted message, or None if Telegram hides them."""
    user = origin.sender_user if isinstance(origin, types.MessageOriginUser) else None
    return None if user is None else _account_to_person(user)


def _original_author_name(message: types.Message) -> str:
    match message.forward_origin:
        case types.MessageOriginUser(sender_user=user):
            return user.full_name
        case types.MessageOriginHiddenUser(sender_user_name=name):
            return name
        case types.MessageOriginChat(sender_chat=chat) | types.MessageOriginChannel(chat=chat):
            return chat.full_name
        case _:
            return ""


def _list_entities(message: types.Message) -> Sequence[types.MessageEntity]:
    return (message.entities if message.text else message.caption_entities) or []


def _wake_reason_and_text(
    message: types.Message,
    content: str,
    text: str,
    bot: types.User,
    commands: Container[str] | None,
) -> tuple[WakeReason | None, str]:
    """Return a message's wake reason, and its text without a leading mention of the bot."""
    first_entity = next((entity for entity in _list_entities(message) if entity.offset == 0), None)
    word = "" if first_entity is None else _entity_text(first_entity, content)
    if first_entity is not None and first_entity.type == MessageEntityType.BOT_COMMAND:
        command, _, addressed_bot = word.partition("@")
        if addressed_bot and not _is_bot_username(addressed_bot, bot):
            return None, text
        is_for_another_bot = (
            not addressed_bot
            and message.chat.type != ChatType.PRIVATE
            and commands is not None
            and command.removeprefix("/").lower() not in commands
        )
        return None if is_for_another_bot else WakeReason.COMMAND, command + text.removeprefix(word)
    if first_entity is not None and _is_bot_mention(first_entity, content, bot):
        text = text.removeprefix(word).lstrip() or text.strip()
    return _find_wake_reason(message, content, bot), text


def _find_wake_reason(message: types.Message, content: str, bot: types.User) -> WakeReason | None:
    if message.chat.type == ChatType.PRIVATE:
        return WakeReason.DM
    if any(_is_bot_mention(entity, content, bot) for entity in _list_entities(message)):
        return WakeReason.MENTION
    reply_target = message.reply_to_message
    # In a topic that the bot opened, every message "replies" to the bot's service message.
    if reply_target is None or reply_target.forum_topic_created or reply_target.from_user is None:
        return None
    return WakeReason.REPLY if reply_target.from_user.id == bot.id else None


def _is_bot_mention(entity: types.MessageEntity, content: str, bot: types.User) -> bool:
    if entity.type == MessageEntityType.TEXT_MENTION:
        return entity.user is not None and entity.user.id == bot.id
    if entity.type != MessageEntityType.MENTION:
        return False
    return _is_bot_username(_entity_text(entity, content).removeprefix("@"), bot)


def _entity_text(entity: types.MessageEntity, content: str) -> str:
    """Return the part of a text that an entity covers; half a surrogate pair becomes U+FFFD."""
    begin, end = _byte_range(entity)
    return content.encode("utf-16-le", "surrogatepass")[begin:end].decode("utf-16-le", "replace")


def _byte_range(entity: types.MessageEntity) -> tuple[int, int]:
    return 2 * max(0, entity.offset), 2 * max(0, entity.offset + entity.length)


def _is_bot_username(name: str, bot: types.User) -> bool:
    return bot.username is not None and name.lower() == bot.username.lower()


def message_text(message: types.Message) -> str:
    """Return a message's text, caption or poll, with the URLs of links."""
    if message.poll is not None:
        return "\n".join(filter(None, [message.caption or "", _poll_text(message.poll)]))
    if message.text:
        return insert_link_urls(message.text, message.entities)
    return insert_link_urls(message.caption or "", message.caption_entities)


def insert_link_urls(text: str, entities: Sequence[types.MessageEntity] | None) -> str:
    """Insert the URL after each link in a text, unless the link's text is the URL itself."""
    links = [one for one in entities or () if one.type == MessageEntityType.TEXT_LINK and one.url]
    text_bytes = text.encode("utf-16-le", "surrogatepass") if links else b""
    for link in sorted(links, key=lambda one: one.offset, reverse=True):
        if _entity_text(link, text).strip() != link.url:
            _, end = _byte_range(link)
            text_bytes = text_bytes[:end] + f" ({link.url})".encode("utf-16-le") + text_bytes[end:]
    return text_bytes.decode("utf-16-le", "replace") if links else text


def _poll_text(poll: types.Poll) -> str:
    heading = f"[{'closed poll' if poll.is_closed else 'poll'}] {poll.question}"
    votes = [f": {one.voter_count}" if poll.total_voter_count else "" for one in poll.options]
    option_lines = (f"- {one.text}{count}" for one, count in zip(poll.options, votes, strict=True))
    return "\n".join([heading, *option_lines])


def message_attachments(message: types.Message) -> tuple[MediaItem, ...]:
    """Return a message's attachments; texts and service messages have none."""
    kind = _MEDIA_KINDS_BY_CONTENT_TYPE.get(message.content_type)
    if message.content_type == ContentType.UNKNOWN and message.chat.type == ChatType.PRIVATE:
        kind = MediaKind.OTHER  # of a type that is newer than our aiogram
    return () if kind is None else (_to_media_item(message, kind),)


def _to_media_item(message: types.Message, kind: MediaKind) -> MediaItem:
    photo_sizes = message.photo or (message.live_photo and message.live_photo.photo) or ()
    file = (
        max(photo_sizes, key=lambda one: one.width * one.height, default=None)
        or message.sticker
        or message.animation
        or message.audio
        or message.document
        or message.video
        or message.voice
        or message.video_note
    )
    if file is None:
        return MediaItem(kind, message.dice.emoji if message.dice else "")
    is_image = (getattr(file, "mime_type", None) or "").startswith("image/")
    kind = MediaKind.IMAGE if kind is MediaKind.FILE and is_image else kind
    name = getattr(file, "file_name", None) or getattr(file, "emoji", None) or ""
    return MediaItem(kind, name, file.file_size, file.file_id)
