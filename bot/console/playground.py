"""The playground: channels in the browser, and what people do there."""

import getpass
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, TypeAlias
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.command import CommandSpec
from bot.chat.incoming import Address, Person, Said
from bot.chat.outgoing import Face
from bot.chat.receipt import NextAnswer, Receipt
from bot.chat.session import Turn
from bot.chat.web_channel import WEB_PLATFORM, WebChannel, WebMessage, web_person
from bot.console.app import protected
from bot.console.live_events import ChannelEvents
from bot.console.message_view import MessageView, color_of, view_message, view_people
from bot.console.pages import PageRenderer
from bot.console.prompt_view import view_prompt, view_reasons
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    check_scope,
    is_number,
    route,
)
from bot.errors import RequestRefused, UserError
from bot.ports import Clock
from bot.routing.presets import PresetResolver
from bot.storage.receipts import Receipts
from bot.storage.web_channels import HistoryCopies, SqlWebChannels
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.texts.text import looked_up, marked, translatable, translate
from bot.value_class import value_class

MessageId = Annotated[str, Field(pattern="^[A-Za-z0-9-]{8,64}$")]
MessageText = Annotated[str, Field(min_length=1, max_length=100_000)]
ShortName = Annotated[str, Field(max_length=80)]


class NewChannel(BaseModel):
    name: ShortName = ""
    look: ShortName = ""


class ConversationCopy(BaseModel):
    conversation: str = Field(min_length=1, max_length=300)


class NewPerson(BaseModel):
    name: ShortName


class ChosenLook(BaseModel):
    channel_look: ShortName = ""


class MessageDraft(BaseModel):
    """What is being written, and as whom."""

    author: str = Field(max_length=200)
    text: str = Field("", max_length=100_000)
    reply_to: str = Field("", max_length=64)


class NewMessage(BaseModel):
    author: str = Field(max_length=200)
    text: MessageText
    key: MessageId
    reply_to: str = Field("", max_length=64)


class ChangedMessage(BaseModel):
    text: MessageText


class ButtonPress(BaseModel):
    author: str = Field("", max_length=200)
    data: str = Field(min_length=1, max_length=200)
    value: str | None = Field(None, max_length=200)
    key: MessageId | None = None


class ComposerQuery(BaseModel):
    """What the composer of the page is opened for."""

    reply: str = ""
    edit: str = ""
    author: str = ""


MAX_PEOPLE = 20
_OPERATOR = "web:console"
"""Who is noted to have chosen the presets of a copy."""


@value_class
class PlaygroundActions:
    """Changes channels and their messages; every change is stored before it returns."""

    channels: SqlWebChannels
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


Preview: TypeAlias = Callable[[Said], Awaitable[NextAnswer]]
"""Tells what would happen to a message."""
ToSaid: TypeAlias = Callable[[WebChannel, WebMessage, Person, WebMessage | None], Said]
"""Returns a message as the service would read it."""

_PATH = "/playground"
_CHANNEL = "/playground/{channel}"
_MESSAGE = "/playground/{channel}/messages/{message}"
_MAX_SHOWN = 500
_MAX_COPIES = 50
_DRAFT = "draft"
_BOT_NAME = "Troupe"
_PLAIN = ("", marked("Plain"))


@value_class
class PlaygroundPages(RouteGroup):
    """Serves the playground.

    Args:
        actions: what people do.
        preview: what would happen to a message.
        to_said: a message as the service reads it.
        receipts: what the last answer was made of.
        commands: those that can be written.
        looks: the platforms that a channel can look like.
        renderer: renders a message for an open page.
    """

    navigation = (NavigationItem(_PATH, translatable("Playground"), "playground"),)

    actions: PlaygroundActions
    preview: Preview
    to_said: ToSaid
    receipts: Receipts
    commands: Sequence[CommandSpec]
    looks: Sequence[str]
    renderer: PageRenderer

    # --- reading ------------------------------------------------------------------------------

    @route(f"GET {_PATH}", Scope.READ, "Go to the newest channel.")
    async def _newest(self, request: ConsoleRequest) -> web.StreamResponse:
        """Go to the newest channel; the first visitor who may make one finds one as well."""
        channels = await self.actions.channels.all()
        if channels:
            return _see_channel(channels[-1])
        check_scope(request.caller, Scope.OPERATE)
        look = self.looks[0] if self.looks else ""
        return _see_channel(await self.actions.create("", look, request.look.language))

    @route(f"GET {_CHANNEL}", Scope.READ, "A channel with its composer.", query=ComposerQuery)
    async def _channel_page(self, request: ConsoleRequest) -> Page:
        channel = await self._channel(request)
        place = request.query(ComposerQuery)
        messages = await self.actions.channels.newest(channel.id, _MAX_SHOWN)
        known = {one.id: one for one in messages}
        active = await self.actions.resolver.resolve((channel.address.lane,))
        edited = known.get(place.edit)
        return Page(
            "playground/channel.html",
            {
                "channel": channel,
                "channels": await self.actions.channels.all(),
                "conversations": await self.actions.copies.recent(_MAX_COPIES),
                "messages": [view_message(one, known, _BOT_NAME) for one in _shown(messages)],
                "people": view_people(channel.people),
                "author": place.author or channel.people[0].id,
                "characters": [one.preset for one in active.members],
                "is_inherited": active.first.scope is None,
                "looks": [*((one, one.capitalize()) for one in self.looks), _PLAIN],
                "replied": known.get(place.reply),
                "edited": edited if edited is not None and edited.author is not None else None,
                "key": _new_key(),
                "commands": self._command_list(request.look.language),
            },
        )

    @route(f"GET {_CHANNEL}/events", Scope.READ, "What changes, as server-sent events.")
    async def _events(self, request: ConsoleRequest) -> web.StreamResponse:
        channel = await self._channel(request)
        given = request.http.headers.get("Last-Event-ID") or request.http.query.get("after", "0")
        if not is_number(given):
            raise RequestRefused(422, translatable("There is nothing of this number."))
        response = protected(web.StreamResponse(), "")
        response.headers["Content-Type"] = "text/event-stream"

        async def render(changes: Sequence[WebMessage]) -> Sequence[str]:
            known = await self._replied_to(channel, changes)
            return [self._rendered(one, known, channel, request) for one in changes]

        events = ChannelEvents(self.actions.channels, channel, render, self.actions.clock)
        await events.stream(request, response, int(given))
        return response

    @route(f"GET {_CHANNEL}/last", Scope.READ, "What the last answer was made of.")
    async def _last(self, request: ConsoleRequest) -> Page:
        channel = await self._channel(request)
        found = await self.receipts.newest(channel.address.conversation)
        answers = [(number, receipt, view_prompt(receipt)) for number, receipt in found]
        return Page("playground/last.html", {"answers": answers})

    @route(f"POST {_CHANNEL}/next", Scope.OPERATE, "Preview the next prompt.", body=MessageDraft)
    async def _next(self, request: ConsoleRequest) -> Page:
        channel, draft = await self._channel(request), request.body(MessageDraft)
        author = _person(channel, draft.author)
        written = WebMessage(_DRAFT, author, draft.text, self._now())
        replied = None
        if draft.reply_to:
            replied = await self.actions.channels.find(channel.id, draft.reply_to)
        answer = await self.preview(self.to_said(channel, written, author, replied))
        receipt: Receipt | None = answer.prompt
        return Page(
            "playground/next.html",
            {
                "answer": answer,
                "prompt": None if receipt is None else view_prompt(receipt),
                "name": _first_name(answer),
                "reasons": view_reasons(answer, request.look.language),
                "color_of": color_of,
            },
        )

    # --- changing -----------------------------------------------------------------------------

    @route(f"POST {_PATH}", Scope.OPERATE, "Open a channel.", body=NewChannel)
    async def _create(self, request: ConsoleRequest) -> web.StreamResponse:
        new = request.body(NewChannel)
        look = self._known_look(new.look)
        return _see_channel(await self.actions.create(new.name, look, request.look.language))

    @route(
        f"POST {_PATH}/copies",
        Scope.OPERATE,
        "Copy a conversation to a channel.",
        body=ConversationCopy,
    )
    async def _copy(self, request: ConsoleRequest) -> web.StreamResponse:
        conversation, language = request.body(ConversationCopy).conversation, request.look.language
        look = conversation.partition(":")[0].partition("@")[0]
        look = look if look in self.looks else ""
        return _see_channel(await self.actions.copy(conversation, look, language))

    @route(f"POST {_CHANNEL}/delete", Scope.OPERATE, "Delete a channel.")
    async def _delete_channel(self, request: ConsoleRequest) -> web.StreamResponse:
        channel = await self._channel(request)
        await self.actions.channels.delete(channel.id)
        return _see(_PATH)

    @route(f"POST {_CHANNEL}/people", Scope.OPERATE, "Add a person.", body=NewPerson)
    async def _add_person(self, request: ConsoleRequest) -> web.StreamResponse:
        channel = await self._channel(request)
        person = await self.actions.add_person(channel, request.body(NewPerson).name)
        return _see_channel(channel, person)

    @route(f"POST {_CHANNEL}/look", Scope.OPERATE, "Look like a platform.", body=ChosenLook)
    async def _choose_look(self, request: ConsoleRequest) -> web.StreamResponse:
        channel = await self._channel(request)
        look = self._known_look(request.body(ChosenLook).channel_look)
        await self.actions.change_look(channel, look)
        return _see_channel(channel)

    @route(f"POST {_CHANNEL}/messages", Scope.OPERATE, "Write a message.", body=NewMessage)
    async def _say(self, request: ConsoleRequest) -> web.StreamResponse:
        channel, new = await self._channel(request), request.body(NewMessage)
        author = _person(channel, new.author)
        await self.actions.say(channel, new.key, author, new.text, new.reply_to or None)
        return _see_channel(channel, author)

    @route(f"POST {_MESSAGE}/edit", Scope.OPERATE, "Edit a message.", body=ChangedMessage)
    async def _edit(self, request: ConsoleRequest) -> web.StreamResponse:
        channel, changed = await self._channel(request), request.body(ChangedMessage)
        await self.actions.edit(channel, request.http.match_info["message"], changed.text)
        return _see_channel(channel)

    @route(f"POST {_MESSAGE}/delete", Scope.OPERATE, "Delete a message.")
    async def _delete(self, request: ConsoleRequest) -> web.StreamResponse:
        channel = await self._channel(request)
        await self.actions.delete(channel, request.http.match_info["message"])
        return _see_channel(channel)

    @route(f"POST {_MESSAGE}/press", Scope.OPERATE, "Press a button.", body=ButtonPress)
    async def _press(self, request: ConsoleRequest) -> web.StreamResponse:
        channel, press = await self._channel(request), request.body(ButtonPress)
        author = _person(channel, press.author or channel.people[0].id)
        message_id = request.http.match_info["message"]
        key = press.key or _new_key()
        await self.actions.press(channel, key, message_id, author, press.data, press.value)
        return _see_channel(channel, author)

    # --- parts --------------------------------------------------------------------------------

    async def _channel(self, request: ConsoleRequest) -> WebChannel:
        return await self.actions.find(request.http.match_info["channel"])

    async def _replied_to(
        self, channel: WebChannel, messages: Sequence[WebMessage]
    ) -> Mapping[str, WebMessage]:
        ids = {one.reply_to for one in messages if one.author is not None and one.reply_to}
        found = [await self.actions.channels.find(channel.id, one) for one in sorted(ids)]
        return {one.id: one for one in found if one is not None}

    def _rendered(
        self,
        message: WebMessage,
        known: Mapping[str, WebMessage],
        channel: WebChannel,
        request: ConsoleRequest,
    ) -> str:
        if message.is_deleted or not message.is_shown:
            return ""
        view: MessageView = view_message(message, known, _BOT_NAME)
        page = Page("playground/message.html", {"one": view, "channel": channel})
        return self.renderer.render(page, request, "")

    def _known_look(self, look: str) -> str:
        if look and look not in self.looks:
            raise RequestRefused(422, translatable("There is no such platform."))
        return look

    def _command_list(self, language: str) -> Sequence[Mapping[str, object]]:
        """Return what can be completed behind a slash."""
        presets = list(self.actions.resolver.complete(""))
        return [
            {
                "text": text,
                "summary": translate(looked_up(spec.summary), language),
                "options": [f"{one.name}" for one in spec.options],
                "values": presets
                if any(one.completes for one in spec.options)
                else [choice for one in spec.options for choice in one.choices],
            }
            for text, spec in _flat(self.commands)
        ]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.actions.clock.now(), UTC)


def _flat(commands: Sequence[CommandSpec]) -> Sequence[tuple[str, CommandSpec]]:
    """Return every command and action with what is typed for it."""
    found = []
    for spec in commands:
        found += [(f"/{spec.name} {one.name}", one) for one in spec.actions]
        found += [] if spec.actions else [(f"/{spec.name}", spec)]
    return found


def _shown(messages: Sequence[WebMessage]) -> Sequence[WebMessage]:
    return [one for one in messages if one.is_shown]


def _first_name(answer: NextAnswer) -> str:
    chosen = answer.prompt.preset if answer.prompt is not None else ""
    return next((one.name for one in answer.characters if one.preset == chosen), chosen)


def _person(channel: WebChannel, person_id: str) -> Person:
    person = next((one for one in channel.people if one.id == person_id), None)
    if person is None:
        raise RequestRefused(422, translatable("There is no such person in this channel."))
    return person


def _new_key() -> str:
    return secrets.token_hex(12)


def _see_channel(channel: WebChannel, author: Person | None = None) -> web.Response:
    query = f"?author={quote(author.id, safe='')}" if author is not None else ""
    return _see(f"{_PATH}/{channel.id}{query}")


def _see(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})
