"""Turn Discord's messages and commands into `Incoming`; discord.py's types end here."""

import re

import discord

from bot.chat.incoming import Address, Incoming, Person, WakeReason
from bot.platforms.discord.commands import command_text

_REFERENCE = re.compile(r"<(?P<kind>@!?|@&|#)(?P<id>\d+)>")
_WRITTEN_BY_PEOPLE = frozenset({discord.MessageType.default, discord.MessageType.reply})


def to_incoming(
    message: discord.Message, bot: discord.ClientUser, bot_id: str = ""
) -> Incoming | None:
    """Convert a message from the gateway or from the channel history.

    `bot_id` is what its address carries.

    Returns None for our own messages, those of bots and webhooks, system messages, and messages
    without text.
    """
    if message.author.bot or message.webhook_id is not None:
        return None
    if message.type not in _WRITTEN_BY_PEOPLE or not message.content.strip():
        return None
    original = _original_message(message)
    address = Address("discord", str(message.channel.id), bot_id=bot_id)
    return Incoming(
        address=address,
        external_key=str(message.id),
        message_id=str(message.id),
        author=_to_person(message.author),
        text=_resolve_references(_strip_mention(message, bot), message),
        at=message.created_at,
        wake=_wake_reason(message, original, bot),
        scopes=_scopes(address, message.channel, message.guild),
        author_is_admin=True if _is_private(message) else None,
        quote=_quote(original),
    )


def command_to_incoming(
    interaction: discord.Interaction, *, deferred: bool, bot_id: str = ""
) -> Incoming:
    """Convert a native command; its text is what a person would type: "/preset use nova".

    One that was not deferred in time gets no interaction: it is answered by a plain message.
    """
    address = Address("discord", str(interaction.channel_id), bot_id=bot_id)
    return Incoming(
        address=address,
        external_key=f"i{interaction.id}",
        message_id=None,
        author=_to_person(interaction.user),
        text=command_text(interaction),
        at=interaction.created_at,
        wake=WakeReason.COMMAND,
        scopes=_scopes(address, interaction.channel, interaction.guild),
        author_is_admin=_is_command_from_admin(interaction),
        interaction=f"{interaction.application_id}:{interaction.token}" if deferred else None,
    )


def _is_command_from_admin(interaction: discord.Interaction) -> bool:
    """Whether the author is alone with the bot or manages the guild of the command.

    A group direct message, where the bot can be called as well, has no admins.
    """
    if interaction.guild_id is None:
        return interaction.context.dm_channel
    return interaction.permissions.administrator or interaction.permissions.manage_guild


def _is_private(message: discord.Message) -> bool:
    # A message of a guild that is not in the cache has no guild either.
    return message.guild is None and isinstance(message.channel, discord.DMChannel)


def _to_person(user: discord.abc.User) -> Person:
    return Person(id=f"discord:{user.id}", name=user.display_name)


def _scopes(address: Address, channel: object, guild: discord.Guild | None) -> tuple[str, ...]:
    scopes = [address.lane]
    if isinstance(channel, discord.Thread):
        scopes.append(f"{address.source}:{channel.parent_id}")
    if guild is not None:
        scopes.append(f"{address.source}:guild:{guild.id}")
    return tuple(scopes)


def _original_message(message: discord.Message) -> discord.Message | None:
    # A forward has a reference, too, but is no reply.
    if message.type is not discord.MessageType.reply or message.reference is None:
        return None
    original = message.reference.resolved
    return original if isinstance(original, discord.Message) else None


def _quote(original: discord.Message | None) -> str | None:
    return (
        (_resolve_references(original.content, original) or None) if original is not None else None
    )


def _wake_reason(
    message: discord.Message, original: discord.Message | None, bot: discord.ClientUser
) -> WakeReason | None:
    if _is_private(message):
        return WakeReason.DM
    if _is_mentioned(message, bot):
        return WakeReason.MENTION
    if original is not None and original.author.id == bot.id:
        return WakeReason.REPLY
    return None


def _is_mentioned(message: discord.Message, bot: discord.ClientUser) -> bool:
    """Whether the text mentions the bot or the role that Discord made for it.

    The mention must be in Discord's own list as well, which has none from code blocks. That list
    alone is not enough: it also has the author of the message that is replied to.
    """
    listed = {user.id for user in message.mentions} | {role.id for role in message.role_mentions}
    return bool(_mention_ids(message, bot) & _ids_in_text(message.content) & listed)


def _mention_ids(message: discord.Message, bot: discord.ClientUser) -> set[int]:
    role = message.guild.self_role if message.guild else None
    return {bot.id, role.id} if role else {bot.id}


def _ids_in_text(content: str) -> set[int]:
    return {int(found["id"]) for found in _REFERENCE.finditer(content)}


def _strip_mention(message: discord.Message, bot: discord.ClientUser) -> str:
    """Remove mentions of the bot from the beginning, unless there is nothing else."""
    rest = text = message.content.strip()
    ids = _mention_ids(message, bot)
    while (found := _REFERENCE.match(rest)) and int(found["id"]) in ids:
        rest = rest[found.end() :].lstrip(" \t\n,:;，：、")
    return rest or text


def _resolve_references(text: str, message: discord.Message) -> str:
    """Replace ids of people, roles and channels by names; unknown ids stay as they are."""
    people = {user.id: user.display_name for user in message.mentions}
    guild = message.guild

    def name(found: re.Match[str]) -> str:
        number = int(found["id"])
        match found["kind"]:
            case "#":
                channel = guild.get_channel_or_thread(number) if guild else None
                return f"#{channel.name}" if channel else found[0]
            case "@&":
                role = guild.get_role(number) if guild else None
                return f"@{role.name}" if role else found[0]
            case _:
                return f"@{people[number]}" if number in people else found[0]

    return _REFERENCE.sub(name, text.strip())
