"""Write what a person has said, and self-descriptions, as a JSON file for that person alone."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from bot.chat.incoming import Incoming, Said, WakeReason
from bot.chat.outgoing import Attachment
from bot.errors import PlatformError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import PersonalData, PrivateChats


@frozen_dataclass
class ExportedWords:
    """A person's own words, of every channel."""

    messages: int
    """How many there are."""
    descriptions: int
    """In how many scopes the person has described themselves."""
    file: Attachment


async def export_words(data: PersonalData, person: str, at: datetime) -> ExportedWords:
    """Write what a person has said and is described as; `at` is the time of the export."""
    lines, descriptions = await data.lines(person), await data.descriptions(person)
    content = {
        "person": person,
        "exported_at": at.isoformat(),
        "descriptions": dict(descriptions),
        "messages": [
            {"conversation": conversation, "at": turn.at.isoformat(), "text": turn.text}
            for conversation, turn in lines
        ],
    }
    text = json.dumps(content, ensure_ascii=False, indent=1)
    return ExportedWords(len(lines), len(descriptions), Attachment("my-words.json", f"{text}\n"))


@frozen_dataclass
class PrivateCommands:
    """Stores a command from a group again, as one of the private chat with its author."""

    chats: Mapping[str, PrivateChats]
    """By `Address.source`, of the platforms that have some."""
    receive: Callable[[Sequence[Incoming]], Awaitable[None]]

    async def repeat(self, said: Said) -> bool:
        """Have the command run there; may be called again. False: there is no such chat.

        Whoever never opened a chat with the bot gets nothing: platforms refuse the message.
        """
        source, person = said.address.source, said.author.id.rpartition(":")[2]
        # Who writes as a chat has the negative id of that chat.
        if source not in self.chats or not person.isdecimal():
            return False
        try:
            address = await self.chats[source].private_chat(said.author.id)
        except PlatformError:
            return False
        command = replace(
            said,
            address=address,
            external_key=f"{said.external_key}:private",
            message_id=None,  # it stands in another chat
            interaction=None,
            wake=WakeReason.DM,
            scopes=(address.channel,),
            author_is_admin=None,
            quote=None,
            in_thread=False,
            is_private=True,
        )
        await self.receive([command])
        return True
