"""Convert Telegram's messages to `Incoming`: channel, author, and why they wake the bot."""

from collections.abc import Sequence

from aiogram.enums import ChatType, MessageEntityType
from aiogram.types import Message, MessageEntity, User

from bot.chat.incoming import Address, Incoming, Person, WakeReason


def to_incoming(message: Message, bot: User, bot_id: str = "") -> Incoming | None:
    """Convert a message; `bot_id` is what its address carries.

    Returns None for messages of other bots, service messages, and messages with neither text nor
    caption.
    """
    content = message.text or message.caption
    author = _to_person(message)
    if not content or author is None:
        return None
    wake, text = _wake_and_text(message, content, bot)
    address = _to_address(message, bot_id)
    return Incoming(
        address=address,
        external_key=f"{message.chat.id}:{message.message_id}",
        message_id=str(message.message_id),
        author=author,
        text=text,
        at=message.date,
        wake=wake,
        scopes=(address.lane,) if address.thread is None else (address.conversation, address.lane),
        author_is_admin=_is_admin(message),
        quote=_quote(message),
    )


def _to_address(message: Message, bot_id: str) -> Address:
    # Replies in an ordinary group have a thread id as well; only a topic keeps its own history.
    topic = message.message_thread_id if message.is_topic_message else None
    thread = None if topic is None else str(topic)
    return Address("telegram", str(message.chat.id), thread, bot_id)


def _to_person(message: Message) -> Person | None:
    """Return the author; None for a bot.

    Anonymous admins and people who write as a channel share one bot user each (1087968824 and
    136817688), so they are identified by the chat that they write as.
    """
    if message.sender_chat is not None:
        return Person(f"telegram:{message.sender_chat.id}", message.sender_chat.full_name)
    user = message.from_user
    if user is None or user.is_bot:
        return None
    return Person(f"telegram:{user.id}", user.full_name)


def _is_admin(message: Message) -> bool | None:
    if message.sender_chat is not None:
        return False  # the person behind it is not known
    return True if message.chat.type == ChatType.PRIVATE else None


def _quote(message: Message) -> str | None:
    if message.quote is not None:
        return message.quote.text
    answered = message.reply_to_message
    return None if answered is None else answered.text or answered.caption


def _wake_and_text(message: Message, content: str, bot: User) -> tuple[WakeReason | None, str]:
    """Return why a message wakes the bot, and its text without a leading mention of the bot."""
    entities = (message.entities if message.text else message.caption_entities) or []
    first = next((entity for entity in entities if entity.offset == 0), None)
    if first is not None and first.type == MessageEntityType.BOT_COMMAND:
        return _command(content, first, bot)
    text = content
    if first is not None and _is_mention(first, content, bot):
        text = content.removeprefix(first.extract_from(content)).lstrip()
    return _wake_reason(message, content, entities, bot), text


def _command(content: str, entity: MessageEntity, bot: User) -> tuple[WakeReason | None, str]:
    word = entity.extract_from(content)
    command, _, addressee = word.partition("@")
    if addressee and not _is_bot_username(addressee, bot):
        return None, content
    return WakeReason.COMMAND, command + content.removeprefix(word)


def _wake_reason(
    message: Message, content: str, entities: Sequence[MessageEntity], bot: User
) -> WakeReason | None:
    if message.chat.type == ChatType.PRIVATE:
        return WakeReason.DM
    if any(_is_mention(entity, content, bot) for entity in entities):
        return WakeReason.MENTION
    answered = message.reply_to_message
    # Every message in a topic that the bot opened "replies" to the service message that opened it.
    if answered is None or answered.forum_topic_created is not None or answered.from_user is None:
        return None
    return WakeReason.REPLY if answered.from_user.id == bot.id else None


def _is_mention(entity: MessageEntity, content: str, bot: User) -> bool:
    if entity.type == MessageEntityType.TEXT_MENTION:
        return entity.user is not None and entity.user.id == bot.id
    if entity.type != MessageEntityType.MENTION:
        return False
    # Telegram counts entities in UTF-16 units; `extract_from` does the same.
    return _is_bot_username(entity.extract_from(content).removeprefix("@"), bot)


def _is_bot_username(name: str, bot: User) -> bool:
    return bot.username is not None and name.lower() == bot.username.lower()
