"""Read a Telegram message: where it was said, by whom, and whether it is meant for the bot."""

from collections.abc import Sequence

from aiogram.enums import ChatType, MessageEntityType
from aiogram.types import Message, MessageEntity, User

from bot.chat.incoming import Address, Incoming, Person, WakeReason


def to_incoming(message: Message, bot: User) -> Incoming | None:
    """Turn a message into the house's form; None when nobody said any words in it.

    Left out are other bots, service messages and what has neither text nor caption.
    """
    said = message.text or message.caption
    author = _author(message)
    if not said or author is None:
        return None
    wake, text = _meant(message, said, bot)
    address = _address(message)
    in_chat = f"telegram:{message.chat.id}"
    return Incoming(
        address=address,
        external_key=f"{message.chat.id}:{message.message_id}",
        message_id=str(message.message_id),
        author=author,
        text=text,
        at=message.date,
        wake=wake,
        scopes=(in_chat,) if address.thread is None else (f"{in_chat}:{address.thread}", in_chat),
        author_is_admin=_is_admin(message),
        quote=_quote(message),
    )


def _address(message: Message) -> Address:
    # Replies in an ordinary group have a thread id as well; only a topic keeps its own history.
    topic = message.message_thread_id if message.is_topic_message else None
    return Address("telegram", str(message.chat.id), None if topic is None else str(topic))


def _author(message: Message) -> Person | None:
    """Who wrote it; None for a bot.

    Anonymous admins and people who write as a channel share one made-up bot user each
    (1087968824 and 136817688), so only the chat that they write as tells them apart.
    """
    if message.sender_chat is not None:
        return Person(f"telegram:{message.sender_chat.id}", message.sender_chat.full_name)
    user = message.from_user
    if user is None or user.is_bot:
        return None
    return Person(f"telegram:{user.id}", user.full_name)


def _is_admin(message: Message) -> bool | None:
    if message.sender_chat is not None:
        return False  # whoever it is, they do not say
    return True if message.chat.type == ChatType.PRIVATE else None


def _quote(message: Message) -> str | None:
    if message.quote is not None:
        return message.quote.text
    answered = message.reply_to_message
    return None if answered is None else answered.text or answered.caption


def _meant(message: Message, said: str, bot: User) -> tuple[WakeReason | None, str]:
    """Why it is meant for the bot, and the words without the bot's name."""
    entities = (message.entities if message.text else message.caption_entities) or []
    first = next((entity for entity in entities if entity.offset == 0), None)
    if first is not None and first.type == MessageEntityType.BOT_COMMAND:
        return _command(said, first, bot)
    text = said
    if first is not None and _is_mention(first, said, bot):
        text = said.removeprefix(first.extract_from(said)).lstrip()
    return _wake(message, said, entities, bot), text


def _command(said: str, entity: MessageEntity, bot: User) -> tuple[WakeReason | None, str]:
    word = entity.extract_from(said)
    command, _, addressee = word.partition("@")
    if addressee and not _is_name(addressee, bot):
        return None, said
    return WakeReason.COMMAND, command + said.removeprefix(word)


def _wake(
    message: Message, said: str, entities: Sequence[MessageEntity], bot: User
) -> WakeReason | None:
    if message.chat.type == ChatType.PRIVATE:
        return WakeReason.DM
    if any(_is_mention(entity, said, bot) for entity in entities):
        return WakeReason.MENTION
    answered = message.reply_to_message
    # Everything said in a topic that the bot opened "replies" to the message that opened it.
    if answered is None or answered.forum_topic_created is not None or answered.from_user is None:
        return None
    return WakeReason.REPLY if answered.from_user.id == bot.id else None


def _is_mention(entity: MessageEntity, said: str, bot: User) -> bool:
    if entity.type == MessageEntityType.TEXT_MENTION:
        return entity.user is not None and entity.user.id == bot.id
    if entity.type != MessageEntityType.MENTION:
        return False
    # Telegram counts entities in UTF-16 units; `extract_from` does the same.
    return _is_name(entity.extract_from(said).removeprefix("@"), bot)


def _is_name(name: str, bot: User) -> bool:
    return bot.username is not None and name.lower() == bot.username.lower()
