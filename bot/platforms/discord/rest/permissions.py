"""Whether somebody may change a guild, asked over REST: the gateway may be away."""

from datetime import datetime
from functools import reduce
from operator import or_

import discord
import msgspec

from bot.platforms.discord.rest.client import RestClient, RestEndpoint, decode_response

_GUILD = RestEndpoint("GET", "/guilds/{}")
_MEMBER = RestEndpoint("GET", "/guilds/{}/members/{}")


class _Role(msgspec.Struct):
    id: str
    permissions: str


class _Guild(msgspec.Struct):
    id: str
    owner_id: str
    roles: list[_Role]


class _Member(msgspec.Struct):
    roles: list[str]
    communication_disabled_until: datetime | None = None


_decode_guild = msgspec.json.Decoder(_Guild).decode
_decode_member = msgspec.json.Decoder(_Member).decode


async def manages_guild(rest: RestClient, guild_id: str, user_id: str, now: float) -> bool:
    """Return whether a member owns, administers or manages a guild; raises `PlatformError`."""
    guild = decode_response(_decode_guild, await rest.call(_GUILD, guild_id))
    member = decode_response(_decode_member, await rest.call(_MEMBER, guild_id, user_id))
    held = {guild.id, *member.roles}  # the role of everybody has the id of the guild
    bits = reduce(or_, (int(role.permissions) for role in guild.roles if role.id in held), 0)
    permissions = discord.Permissions(bits)
    if guild.owner_id == user_id or permissions.administrator:
        return True
    silenced_until = member.communication_disabled_until
    is_silenced = silenced_until is not None and silenced_until.timestamp() > now
    return permissions.manage_guild and not is_silenced
