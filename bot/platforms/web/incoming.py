"""Turn messages of our own channels into incoming events."""

import re
from collections.abc import Sequence

from bot.chat.incoming import Deleted, Edited, Incoming, Person, Pressed, Quote, Said, WakeReason
from bot.chat.playground.web_channel import WebChannel, WebMessage, inbox_key

_BOT_MENTION = re.compile(r"@(?:bot|troupe)\b[,:]?\s*", re.IGNORECASE)


def to_incoming(
    channel: WebChannel, message: WebMessage, replied_to: WebMessage | None, known_revision: int
) -> Incoming | None:
    """Return what a change of a person's message means; None: nothing.

    Args:
        channel: where it is.
        message: the message as it reads now.
        replied_to: the message that it replies to, if there is one.
        known_revision: the revision up to which changes were read before.
    """
    author = message.author
    if author is None or message.is_note:
        return None
    if message.press is not None:
        return to_pressed(channel, message, author)
    is_new = message.position > known_revision
    if is_new and message.is_copied:
        return None
    if message.is_deleted:
        return None if is_new else to_deleted(channel, message)
    said = to_said(channel, message, author, replied_to)
    if is_new:
        return said
    return Edited(f"{said.external_key}:{message.revision}", said, message.edited_at or message.at)


def to_said(
    channel: WebChannel, message: WebMessage, author: Person, replied_to: WebMessage | None
) -> Said:
    """Return a message as the service reads it.

    With one person, the channel is a private chat; with several, a message addresses the bot as in
    a channel of Discord: by a mention, a reply, a name or a command.
    """
    text, is_mentioned = message.text, False
    if found := _BOT_MENTION.search(text):
        is_mentioned = True
        if found.start() == 0 and found.end() < len(text):
            text = text[found.end() :]
    is_alone = len(channel.people) == 1
    address = channel.address
    return Said(
        address=address,
        external_key=inbox_key(channel.id, message),
        message_id=message.id,
        author=author,
        text=text,
        at=message.at,
        wake=_wake_reason(text, replied_to, is_alone=is_alone, is_mentioned=is_mentioned),
        scopes=(address.lane,),
        author_is_admin=True,  # only the operator has the console
        quote=None if replied_to is None else _quote(replied_to),
        mentions=_mentions(text, channel.people, author),
        locale=channel.locale,
        is_private=is_alone,
        has_masked_token=message.has_masked_token,
    )


def to_deleted(channel: WebChannel, message: WebMessage) -> Deleted:
    address = channel.address
    key = f"{inbox_key(channel.id, message)}:deleted"
    return Deleted(address, key, (message.id,), message.at, (address.lane,))


def to_pressed(channel: WebChannel, message: WebMessage, author: Person) -> Pressed:
    address = channel.address
    return Pressed(
        address,
        inbox_key(channel.id, message),
        message.reply_to,
        author,
        message.press or "",
        message.at,
        (address.lane,),
        message.values,
        author_is_admin=True,
        locale=channel.locale,
    )


def _wake_reason(
    text: str, replied_to: WebMessage | None, *, is_alone: bool, is_mentioned: bool
) -> WakeReason | None:
    if text.startswith("/"):
        return WakeReason.COMMAND
    if is_alone:
        return WakeReason.DM
    if is_mentioned:
        return WakeReason.MENTION
    if replied_to is not None and replied_to.author is None:
        return WakeReason.REPLY
    return None


def _quote(message: WebMessage) -> Quote:
    is_ours = message.author is None
    return Quote(message.author, message.id, message.text, is_ours=is_ours)


def _mentions(text: str, people: Sequence[Person], author: Person) -> tuple[str, ...]:
    lowered = text.casefold()
    named = (one for one in people if one.id != author.id)
    return tuple(one.id for one in named if f"@{one.name.casefold()}" in lowered)
