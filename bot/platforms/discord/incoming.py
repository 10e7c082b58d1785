"""Convert Discord's events to `Incoming` values, which contain no types of discord.py."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import discord
from discord.abc import Snowflake

from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    IncomingMessage,
    MediaItem,
    MediaKind,
    MessageDeletion,
    MessageEdit,
    Person,
    Quote,
    ReactionChange,
    ThreadTitle,
    WakeReason,
    parse_reaction,
)
from bot.platforms.discord import commands
from bot.platforms.spec import PlatformContext

_MENTION_REFERENCE = re.compile(r"<(?P<kind>@!?|@&|#)(?P<id>\d+)>")
_USER_MESSAGE_TYPES = frozenset({discord.MessageType.default, discord.MessageType.reply})


def to_incoming_message(
    message: discord.Message, bot: Snowflake, bot_id: str = "", *, allows_bots: bool = False
) -> IncomingMessage | None:
    """Convert a message, or return None for system messages and (unless `allows_bots`) bots."""
    is_by_bot = message.author.bot or message.webhook_id is not None
    if is_by_bot and not allows_bots:
        return None
    attachments = _list_attachments(message)
    text = _resolve_references(_full_text(message, _strip_mention(message, bot)), message)
    forwarded_text = _forwarded_text(message)  # a forward has no text of its own
    if message.type not in _USER_MESSAGE_TYPES or not (text or forwarded_text or attachments):
        return None
    replied_message = _find_replied_message(message)
    address = Address("discord", str(message.channel.id), bot_id=bot_id)
    return IncomingMessage(
        address=address,
        external_key=str(message.id),
        message_id=str(message.id),
        author=_to_person(message.author),
        text=text or forwarded_text,
        at=message.created_at,
        wake=_find_wake_reason(message, replied_message, bot),
        scopes=_list_scopes(address, message.channel, message.guild),
        author_is_admin=True if _is_private(message) else None,
        author_roles=() if _is_private(message) else _list_role_ids(message.author),
        is_private=_is_private(message),
        is_age_restricted=_is_age_restricted(message.channel, is_private=_is_private(message)),
        quote=_to_quote(replied_message, bot),
        attachments=attachments,
        in_thread=isinstance(message.channel, discord.Thread),
        opened_from=_find_bot_thread_id(message.channel, bot),
        thread_title=_to_thread_title(message.channel, bot),
        channel_title=_channel_title(message.channel, message.guild),
        mentions=_list_mentions(message, bot),
        locale=str(message.guild.preferred_locale) if message.guild else None,
        is_forward=bool(forwarded_text and not text),
    )


def to_message_edit(
    message: discord.Message, bot: Snowflake, bot_id: str = "", thread: discord.Thread | None = None
) -> MessageEdit | None:
    """Convert an edit (in `thread`, if given); return None if it only added a link preview."""
    incoming = to_incoming_message(message, bot, bot_id)
    if incoming is None or message.edited_at is None:
        return None
    at = message.edited_at
    external_key = f"e{message.id}:{at.timestamp():.6f}"
    if thread is None:
        return MessageEdit(external_key, incoming, at)
    address = replace(incoming.address, chat=str(thread.id))
    scopes = _list_scopes(address, thread, message.guild)
    thread_message = replace(incoming, address=address, scopes=scopes, in_thread=True, is_late=True)
    return MessageEdit(f"{external_key}@{thread.id}", thread_message, at)


def to_message_deletion(
    channel_id: int,
    message_ids: Collection[int],
    channel: object,
    guild: discord.Guild | None,
    bot_id: str = "",
) -> MessageDeletion:
    address = Address("discord", str(channel_id), bot_id=bot_id)
    sorted_ids = sorted(message_ids)
    return MessageDeletion(
        address,
        f"d{channel_id}:{sorted_ids[0]}-{sorted_ids[-1]}-{len(sorted_ids)}",
        tuple(map(str, sorted_ids)),
        discord.utils.utcnow(),
        _list_scopes(address, channel, guild),
    )


def to_button_press(interaction: discord.Interaction, bot_id: str = "") -> ButtonPress:
    """Convert a button press, a menu choice, or a submitted form that a button opened."""
    data = commands.interaction_data(interaction)
    message = interaction.message
    values = tuple(map(str, data.get("values", ())))
    if interaction.type is discord.InteractionType.modal_submit:
        values = (commands.read_form_value(interaction),)
    return ButtonPress(
        message_id=str(message.id) if message else None,
        shown_at=message.created_at if message else None,
        is_ephemeral=message.flags.ephemeral if message else False,
        data=str(data.get("custom_id", "")),
        values=values,
        interaction=f"{interaction.application_id}:{interaction.token}",
        **_read_origin_fields(interaction, bot_id),
    )


def to_reaction_change(
    event: discord.RawReactionActionEvent,
    channel: object,
    guild: discord.Guild | None,
    external_key: str,
    bot_id: str = "",
) -> ReactionChange | None:
    """Convert a reaction; return None if it is a bot's, or if we do not use its emoji."""
    reaction = parse_reaction(event.emoji.name) if event.emoji.id is None else None
    if reaction is None or (event.member is not None and event.member.bot):
        return None
    address = Address("discord", str(event.channel_id), bot_id=bot_id)
    is_private = event.guild_id is None
    name = event.member.display_name if event.member else ""
    return ReactionChange(
        address=address,
        external_key=external_key,
        message_id=str(event.message_id),
        author=Person(f"discord:{event.user_id}", name),
        reaction=reaction,
        at=discord.utils.utcnow(),  # the event contains no time
        scopes=_list_scopes(address, channel, guild),
        is_removed=event.event_type == "REACTION_REMOVE",
        author_is_admin=True if is_private else None,
        author_roles=() if is_private else _list_role_ids(event.member),
        is_private=is_private,
        is_age_restricted=_is_age_restricted(channel, is_private=is_private),
        in_thread=isinstance(channel, discord.Thread),
        thread_title=_to_thread_title(channel, None),
    )


def _read_origin_fields(interaction: discord.Interaction, bot_id: str) -> dict[str, Any]:
    """Return the fields that describe who started an interaction, and where."""
    address = Address("discord", str(interaction.channel_id), bot_id=bot_id)
    is_private = interaction.guild_id is None
    # A group direct message has no admins.
    is_admin = interaction.context.dm_channel if is_private else commands.manages_guild(interaction)
    return {
        "address": address,
        "external_key": f"i{interaction.id}",
        "author": _to_person(interaction.user),
        "at": interaction.created_at,
        "scopes": _list_scopes(address, interaction.channel, interaction.guild),
        "author_is_admin": is_admin,
        "author_roles": () if is_private else _list_role_ids(interaction.user),
        "is_private": is_private,
        "is_age_restricted": _is_age_restricted(interaction.channel, is_private=is_private),
        "locale": str(interaction.locale),
        "in_thread": isinstance(interaction.channel, discord.Thread),
        "thread_title": _to_thread_title(interaction.channel, interaction.client.user),
    }


def to_chat_join(guild: discord.Guild, bot_id: str = "") -> ChatJoin | None:
    """Convert the event of joining a server; return None if the bot cannot post a greeting."""
    channels = [guild.system_channel, *guild.text_channels]
    permissions = discord.Permissions(view_channel=True, send_messages=True)
    candidates = (one for one in channels if one and one.permissions_for(guild.me) >= permissions)
    channel = next(candidates, None)
    if channel is None:
        return None
    address = Address("discord", str(channel.id), bot_id=bot_id)
    joined_at = guild.me.joined_at or discord.utils.utcnow()
    external_key = f"join:{guild.id}:{joined_at.timestamp():.0f}"
    return ChatJoin(
        *(address, external_key, None, joined_at, _list_scopes(address, channel, guild)),
        locale=str(guild.preferred_locale),
        is_age_restricted=_is_age_restricted(channel, is_private=False),
    )


def to_command_message(
    interaction: discord.Interaction, context: PlatformContext, *, is_deferred: bool
) -> IncomingMessage:
    """Convert a command to a message; a context menu command becomes a reply to its target."""
    return IncomingMessage(
        message_id=None,
        text=commands.to_command_text(interaction, context.message_commands),
        wake=WakeReason.COMMAND,
        quote=_quote_target_message(interaction),
        attachments=_list_command_files(interaction),
        interaction=f"{interaction.application_id}:{interaction.token}" if is_deferred else None,
        has_public_response=commands.has_public_response(interaction, context.commands),
        channel_title=_channel_title(interaction.channel, interaction.guild),
        **_read_origin_fields(interaction, context.bot_id),
    )


def _quote_target_message(interaction: discord.Interaction) -> Quote | None:
    """Return the message that a command or form applies to, or None."""
    if interaction.type is discord.InteractionType.modal_submit:
        _, message_id = commands.read_command_and_message_id(interaction)
        return Quote(None, message_id, "") if message_id else None
    data = commands.interaction_data(interaction)
    target_message = data.get("resolved", {}).get("messages", {}).get(str(data.get("target_id")))
    if target_message is None:
        return None
    author = target_message["author"]
    person = Person(f"discord:{author['id']}", author.get("global_name") or author["username"])
    return Quote(person, str(target_message["id"]), target_message.get("content", ""))


def _list_command_files(interaction: discord.Interaction) -> tuple[MediaItem, ...]:
    attachments = commands.interaction_data(interaction).get("resolved", {}).get("attachments", {})
    return tuple(
        MediaItem(
            _KINDS_BY_MAIN_TYPE.get(str(one.get("content_type")).partition("/")[0], MediaKind.FILE),
            *(str(one["filename"]), one.get("size"), str(one["url"])),
        )
        for one in attachments.values()
    )


def _is_private(message: discord.Message) -> bool:
    # `guild` is also None for a guild that is not in the cache.
    return message.guild is None and isinstance(message.channel, discord.DMChannel)


def _to_person(user: discord.abc.User) -> Person:
    return Person(id=f"discord:{user.id}", name=user.display_name)


def _list_role_ids(user: discord.abc.User | None) -> tuple[str, ...] | None:
    """Return the ids of a member's roles except @everyone, or None if they are unknown."""
    if not isinstance(user, discord.Member) or user.guild.unavailable:
        return None
    return tuple(f"discord:{role.id}" for role in user.roles if not role.is_default())


def _find_bot_thread_id(channel: object, bot: Snowflake) -> str | None:
    """Return the id of the message from which the bot started a thread (also the thread's id)."""
    if isinstance(channel, discord.Thread) and channel.owner_id == bot.id:
        return str(channel.id)
    return None


def _to_thread_title(channel: object, bot: Snowflake | None) -> ThreadTitle | None:
    if isinstance(channel, discord.Thread) and (bot is None or channel.owner_id != bot.id):
        return ThreadTitle(channel.name, f"discord:{channel.owner_id}")
    return None


def _channel_title(channel: object, guild: discord.Guild | None) -> str:
    """Return the names of a server, its channel, and the thread; "" if the cache lacks them."""
    name = getattr(channel, "name", "")
    if guild is None or not guild.name or not name:
        return ""
    if not isinstance(channel, discord.Thread):
        names = [guild.name, f"#{name}"]
    else:
        names = [guild.name, f"#{channel.parent.name}" if channel.parent else "", name]
    return " › ".join(filter(None, names))


def _list_scopes(address: Address, channel: object, guild: discord.Guild | None) -> tuple[str, ...]:
    scopes = [address.lane]
    if isinstance(channel, discord.Thread):
        scopes.append(f"{address.source}:{channel.parent_id}")
    if guild is not None:
        scopes.append(f"{address.source}:guild:{guild.id}")
    return tuple(scopes)


def _is_age_restricted(channel: object, *, is_private: bool) -> bool | None:
    """Return whether only adults may enter a channel on Discord, or None for private chats."""
    if is_private:
        return None
    is_nsfw = getattr(channel, "is_nsfw", None)  # missing if the channel is not in the cache
    return is_nsfw is not None and bool(is_nsfw())


def _find_replied_message(message: discord.Message) -> discord.Message | None:
    # A forwarded message also has a reference, but is not a reply.
    if message.type is not discord.MessageType.reply or message.reference is None:
        return None
    replied_message = message.reference.resolved
    return replied_message if isinstance(replied_message, discord.Message) else None


def _to_quote(replied_message: discord.Message | None, bot: Snowflake) -> Quote | None:
    if replied_message is None:
        return None
    return Quote(
        _to_person(replied_message.author),
        str(replied_message.id),
        _resolve_references(_full_text(replied_message, replied_message.content), replied_message)
        or _forwarded_text(replied_message),
        _list_attachments(replied_message),
        is_ours=replied_message.author.id == bot.id,
        by_webhook=replied_message.webhook_id is not None,
    )


def _list_mentions(message: discord.Message, bot: Snowflake) -> tuple[str, ...]:
    if "<" not in message.content:
        return ()
    bot_and_role_ids = _bot_and_role_ids(message, bot)
    mention_matches = (
        one
        for one in _MENTION_REFERENCE.finditer(message.content)
        if int(one["id"]) not in bot_and_role_ids
    )
    return tuple(
        f"discord:{'&' if one['kind'] == '@&' else ''}{one['id']}"
        for one in mention_matches
        if one["kind"] != "#"
    )


_KINDS_BY_MAIN_TYPE = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}
_PREVIEW_EMBED_TYPES = frozenset({"article", "gifv", "image", "link", "video"})
"""The types of embeds that Discord adds as previews of links."""
_COMPONENT_TEXT_FIELDS = ("content", "label", "placeholder", "description", "name", "url")
_COMPONENT_CHILD_FIELDS = ("children", "items", "options")


def _list_attachments(message: discord.Message) -> tuple[MediaItem, ...]:
    items = _list_message_files(message)
    for snapshot in message.message_snapshots:
        text = _join_texts(_collect_texts(snapshot, snapshot.content))
        items += _list_message_files(snapshot) or ([] if text else [MediaItem(MediaKind.FORWARD)])
    return tuple(items)


def _list_message_files(message: discord.Message | discord.MessageSnapshot) -> list[MediaItem]:
    files = [
        MediaItem(_find_file_kind(one), one.filename, one.size, one.url)
        for one in message.attachments
    ]
    stickers = [MediaItem(MediaKind.STICKER, one.name, None, one.url) for one in message.stickers]
    return files + stickers


def _forwarded_text(message: discord.Message) -> str:
    """Return the text of forwarded messages as quotes; Discord does not reveal their authors."""
    texts = [_join_texts(_collect_texts(one, one.content)) for one in message.message_snapshots]
    lines = [_resolve_references(one, message).splitlines() for one in texts if one]
    return "\n".join("\n> ".join(["[forwarded message]", *one]) for one in lines)


def _full_text(message: discord.Message, content: str) -> str:
    is_by_bot = message.author.bot or message.webhook_id is not None
    # Embeds in messages of people are only previews of links.
    texts = _collect_texts(message, content) if is_by_bot else [content]
    return _join_texts([*texts, _poll_text(message.poll) if message.poll else ""])


def _collect_texts(
    message: discord.Message | discord.MessageSnapshot, content: str
) -> Iterator[str]:
    """Yield the texts of a message's content and embeds, and of components if it has no content."""
    yield content
    for embed in message.embeds:
        if embed.type not in _PREVIEW_EMBED_TYPES and not (embed.url and embed.url in content):
            yield from _embed_texts(embed)
    if not content.strip():
        for component in message.components:
            yield from _component_texts(component)


def _embed_texts(embed: discord.Embed) -> Iterator[str]:
    yield embed.author.name or ""
    yield f"{embed.title or ''} ({embed.url})" if embed.url else embed.title or ""
    yield embed.description or ""
    for field in embed.fields:
        yield f"{field.name}: {field.value}"
    yield embed.footer.text or ""


def _component_texts(component: object) -> Iterator[str]:
    """Yield the texts of a component of any type, and of the components inside it."""
    texts = [getattr(component, name, None) for name in _COMPONENT_TEXT_FIELDS]
    yield " – ".join(one for one in texts if isinstance(one, str) and one)
    for name in _COMPONENT_CHILD_FIELDS:
        for part in getattr(component, name, None) or ():
            yield from _component_texts(part)
    for name in ("accessory", "component"):
        if (part := getattr(component, name, None)) is not None:
            yield from _component_texts(part)


def _poll_text(poll: discord.Poll) -> str:
    heading = f"[{'closed poll' if poll.is_finalized() else 'poll'}] {poll.question}"
    vote_texts = {one.id: f": {one.vote_count}" if poll.total_votes else "" for one in poll.answers}
    return _join_texts([heading, *(f"- {one.text}{vote_texts[one.id]}" for one in poll.answers)])


def _join_texts(texts: Iterable[str]) -> str:
    return "\n".join(one.strip() for one in texts if one.strip())


def _find_file_kind(file: discord.Attachment) -> MediaKind:
    if file.is_voice_message():
        return MediaKind.VOICE
    main_type = (file.content_type or "").partition("/")[0]
    return _KINDS_BY_MAIN_TYPE.get(main_type, MediaKind.FILE)


def _find_wake_reason(
    message: discord.Message, replied_message: discord.Message | None, bot: Snowflake
) -> WakeReason | None:
    if _is_private(message):
        return WakeReason.DM
    if _is_mentioned(message, bot):
        return WakeReason.MENTION
    if replied_message is not None and replied_message.author.id == bot.id:
        return WakeReason.REPLY
    return None


def _is_mentioned(message: discord.Message, bot: Snowflake) -> bool:
    """Return whether the text mentions the bot or its role.

    A mention must be in the text and in Discord's list of mentions: the list omits mentions in
    code, but includes the author of a replied-to message.
    """
    if "<" not in message.content:
        return False
    ids_in_text = {int(mention["id"]) for mention in _MENTION_REFERENCE.finditer(message.content)}
    mentioned_ids = {one.id for one in (*message.mentions, *message.role_mentions)}
    return bool(_bot_and_role_ids(message, bot) & ids_in_text & mentioned_ids)


def _bot_and_role_ids(message: discord.Message, bot: Snowflake) -> set[int]:
    bot_role = message.guild.self_role if message.guild else None
    return {bot.id, bot_role.id} if bot_role else {bot.id}


def _strip_mention(message: discord.Message, bot: Snowflake) -> str:
    """Return a message's text without leading mentions of the bot, unless nothing else is left."""
    remaining_text = text = message.content.strip()
    if not text.startswith("<"):
        return text
    ids = _bot_and_role_ids(message, bot)
    while (mention := _MENTION_REFERENCE.match(remaining_text)) and int(mention["id"]) in ids:
        remaining_text = remaining_text[mention.end() :].lstrip(" \t\n,:;，：、")
    return remaining_text or text


def _resolve_references(text: str, message: discord.Message) -> str:
    """Replace the ids of people, roles and channels in a text with their names, if known."""
    if "<" not in text:
        return text.strip()
    names_by_id = {user.id: user.display_name for user in message.mentions}
    guild = message.guild

    def replace_reference(match: re.Match[str]) -> str:
        target_id = int(match["id"])
        match match["kind"]:
            case "#":
                channel = guild.get_channel_or_thread(target_id) if guild else None
                return f"#{channel.name}" if channel else match[0]
            case "@&":
                role = guild.get_role(target_id) if guild else None
                return f"@{role.name}" if role else match[0]
            case _:
                return f"@{names_by_id[target_id]}" if target_id in names_by_id else match[0]

    return _MENTION_REFERENCE.sub(replace_reference, text.strip())
