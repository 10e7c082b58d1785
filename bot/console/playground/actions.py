"""What people do in a web channel: each action is stored, and the platform reads it from there."""

import getpass
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bot.chat.incoming import Address, Person
from bot.chat.outgoing import Face
from bot.chat.playground.web_channel import WEB_PLATFORM, WebChannel, WebMessage, web_person
from bot.chat.session import Turn
from bot.errors import RequestRefused, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock, HistoryCopies, WebChannels
from bot.routing.preset_resolver import PresetResolver
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.texts.text import translatable

MAX_PEOPLE = 20
_OPERATOR = "web:console"
"""Who is noted to have chosen the presets of a copy."""


@frozen_dataclass
class PlaygroundActions:
    """Changes channels and their messages; every change is stored before it returns."""

    channels: WebChannels
    copies: HistoryCopies
    resolver: PresetResolver
    clock: Clock

    async def find(self, channel_id: str) -> WebChannel:
        """Return a channel; raises `RequestRefused` with 404 if there is none."""
        channel = await self.channels.get(channel_id)
        if channel is None:
            raise RequestRefused(404, translatable("There is no such channel."))
        return channel

    async def create(
        self, name: str, look: str, locale: str | None, people: Sequence[Person] = ()
    ) -> WebChannel:
        """Create a channel; without people, whoever started the service talks there."""
        channel = WebChannel(
            secrets.token_hex(6),
            name.strip() or "playground",
            look,
            tuple(people) or (web_person(_login_name()),),
            self._now(),
            locale,
        )
        await self.channels.create(channel)
        return channel

    async def change_look(self, channel: WebChannel, look: str) -> None:
        """Let a channel look like another platform from now on."""
        await self.channels.update(replace(channel, look=look))

    async def add_person(self, channel: WebChannel, name: str) -> Person:
        """Add somebody whom messages can be written as.

        Raises:
            UserError: the channel is full, or the name is empty.
        """
        person = web_person(" ".join(name.split()))
        if not person.name:
            raise UserError(translatable("A person needs a name."))
        if any(one.id == person.id for one in channel.people):
            return person
        if len(channel.people) >= MAX_PEOPLE:
            raise UserError(
                translatable("{count} people are here, which is the maximum.", count=MAX_PEOPLE)
            )
        await self.channels.update(replace(channel, people=(*channel.people, person)))
        return person

    async def say(
        self, channel: WebChannel, message_id: str, author: Person, text: str, reply_to: str | None
    ) -> None:
        """Write a message; the same id is written once."""
        said = WebMessage(message_id, author, "", self._now(), reply_to=reply_to)
        await self.channels.add(channel.id, [_with_text(said, text)])

    async def edit(self, channel: WebChannel, message_id: str, text: str) -> None:
        """Change what a person's message says."""
        message = await self._of_person(channel, message_id)
        if text != message.text:
            edited = replace(message, edited_at=self._now())
            await self.channels.replace(channel.id, _with_text(edited, text))

    async def delete(self, channel: WebChannel, message_id: str) -> None:
        """Delete a person's message."""
        message = await self._of_person(channel, message_id)
        await self.channels.replace(channel.id, message.emptied())

    async def press(
        self,
        channel: WebChannel,
        press_id: str,
        message_id: str,
        author: Person,
        data: str,
        value: str | None,
    ) -> None:
        """Press a button that stands under a message, or choose a value from its menu."""
        values = () if value is None else (value,)
        now = self._now()
        pressed = WebMessage(
            press_id, author, "", now, reply_to=message_id, press=data, values=values
        )
        await self.channels.add(channel.id, [pressed])

    async def copy(self, conversation: str, look: str, locale: str | None) -> WebChannel:
        """Copy a conversation, with its people and characters, to a new channel.

        Raises:
            RequestRefused: nothing was said there, or there is no such conversation.
        """
        target = secrets.token_hex(6)
        address = Address(WEB_PLATFORM, target)
        turns = await self.copies.copy(conversation, address.conversation)
        if not turns:
            raise RequestRefused(404, translatable("There is nothing to copy."))
        people = {one.speaker.id: one.speaker for one in turns if one.speaker is not None}
        channel = WebChannel(
            target,
            conversation,
            look,
            tuple(people.values())[:MAX_PEOPLE] or (web_person(_login_name()),),
            self._now(),
            locale,
        )
        await self.channels.create(channel)
        names = self.resolver.character_names({one.preset for one in turns if one.preset})
        copied = [_to_message(at, one, names) for at, one in enumerate(turns)]
        await self.channels.add(target, copied)
        used = [self.resolver.presets[name] for name in names if name in self.resolver.presets]
        if used:
            await self.resolver.set_active(address.lane, used, _OPERATOR)
        return channel

    async def _of_person(self, channel: WebChannel, message_id: str) -> WebMessage:
        message = await self.channels.find(channel.id, message_id)
        if message is None or message.author is None or not message.is_shown:
            raise RequestRefused(404, translatable("There is no such message."))
        return message

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), UTC)


def _to_message(at: int, turn: Turn, names: Mapping[str, str]) -> WebMessage:
    face = None if turn.preset is None else Face(names[turn.preset])
    name = turn.message_id or f"copy-{at}"
    return WebMessage(name, turn.speaker, turn.text, turn.at, face=face, is_copied=True)


def _with_text(message: WebMessage, text: str) -> WebMessage:
    """Let a message say a text, without the tokens and keys that were pasted into it."""
    masked = mask_pasted_tokens(text)
    return replace(message, text=masked, has_masked_token=masked != text)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "you"
