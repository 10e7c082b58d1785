"""The playground: chat channels in the browser, in which the operator acts as several people.

Every change is stored before its request is answered; the `web` platform then reads it.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from aiohttp import web
from pydantic import Field

from bot.chat.access import ApiScope
from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.command import CommandSpec
from bot.chat.incoming import IncomingMessage, Person
from bot.chat.outgoing import Face
from bot.chat.receipt import NextAnswer
from bot.chat.session import Turn
from bot.chat.web_channel import WebChannel, WebMessage, web_person
from bot.console.message_view import choose_color, is_finished, view_message
from bot.console.operator_requests import OPERATOR
from bot.console.pages import PageRenderer
from bot.console.prompt_view import view_prompt
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    Values,
    add_security_headers,
    check_scope,
    parse_number,
    redirect,
    route,
)
from bot.errors import RequestRefused, StoreError, UserError
from bot.ports import Clock
from bot.routing.presets import PresetResolver
from bot.runtime.terminal import login_name
from bot.storage.reports import AnswerLog
from bot.storage.web_channels import HistoryCopier, SqlWebChannels
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.texts.text import marked, to_translatable, translatable, translate
from bot.value_class import value_class

PreviewAnswer: TypeAlias = Callable[[IncomingMessage], Awaitable[NextAnswer]]
RenderChanges: TypeAlias = Callable[[Sequence[WebMessage]], Awaitable[tuple[Sequence[str], str]]]
"""Returns each message's HTML (empty if it is not shown), and the header's HTML."""
ToIncomingMessage: TypeAlias = Callable[
    [WebChannel, WebMessage, Person, WebMessage | None], IncomingMessage
]

_PLAYGROUND_PATH = "/playground"
_CHANNEL_PATH = "/playground/{channel}"
_MESSAGE_PATH = "/playground/{channel}/messages/{message}"
_MAX_PEOPLE = 20
_MAX_SHOWN_MESSAGES = 100
_MAX_NEW_ANSWERS = 20
_MAX_ANSWER_DELAY = 600.0  # in seconds, after the last message that is shown
_MAX_LISTED_CONVERSATIONS = 50
_CHANGES_PER_READ = 50
_POLL_SECONDS = 5.0  # finds other processes' changes if their signals were lost
_WRITE_TIMEOUT_SECONDS = 20.0  # a slower write means that the reader is gone
_MAX_STREAM_SECONDS = 300.0  # after this time, the page must reconnect
_SECONDS_BETWEEN_CHECKS = 5.0  # between checks that the session is valid
_DRAFT_MESSAGE_ID = "draft"
_PLAIN_LOOK = ("", marked("Plain"))
MessageId = Annotated[str, Field(pattern="^[A-Za-z0-9-]{8,64}$")]
ReplyTo = Annotated[str, Field(max_length=64)]
MessageText = Annotated[str, Field(min_length=1, max_length=100_000)]
ShortName = Annotated[str, Field(max_length=80)]
LongName = Annotated[str, Field(max_length=200)]


@value_class
class PlaygroundPages(RouteGroup):
    navigation = (NavigationItem(_PLAYGROUND_PATH, translatable("Playground"), "playground"),)

    channels: SqlWebChannels
    copies: HistoryCopier
    resolver: PresetResolver
    clock: Clock
    preview: PreviewAnswer
    to_incoming_message: ToIncomingMessage
    answers: AnswerLog
    find_picture_path: Callable[[str], str]
    """Returns the path of a preset's picture; empty if it has none."""
    commands: Sequence[CommandSpec]
    looks: Sequence[str]
    renderer: PageRenderer = field(default_factory=lambda: PageRenderer(()))

    @route(f"GET {_PLAYGROUND_PATH}", ApiScope.READ)
    async def open_newest_channel(self, request: ConsoleRequest) -> web.Response:
        """Redirect to the newest channel; create the first one if there is none."""
        channels = await self.channels.all()
        if channels:
            return _redirect_to_channel(channels[-1])
        check_scope(request.caller, ApiScope.OPERATE)
        return await self.create_channel(request, look=self.looks[0] if self.looks else "")

    @route(f"GET {_CHANNEL_PATH}", ApiScope.READ, template="playground/channel.html")
    async def show(
        self,
        request: ConsoleRequest,
        channel: str,
        reply: str = "",
        edit: str = "",
        author: str = "",
        before: Annotated[int, Field(ge=1, lt=2**62)] | None = None,
    ) -> Values:
        """Show a channel: the message box, and the newest messages or those before a position."""
        web_channel = await self._find(channel)
        before_args = () if before is None else (before,)
        messages = await self.channels.newest(web_channel.id, _MAX_SHOWN_MESSAGES, *before_args)
        by_id = {one.id: one for one in messages}
        until = messages[-1].at.timestamp() + _MAX_ANSWER_DELAY if before and messages else None
        answers = await self._list_answers(web_channel, _MAX_SHOWN_MESSAGES, until)
        header = await self._load_header(web_channel)
        visible = (one for one in messages if one.is_shown)
        target = by_id.get(edit)
        return {
            **header,
            "channels": await self.channels.all(),
            "conversations": await self.copies.recent_conversations(_MAX_LISTED_CONVERSATIONS),
            "messages": [view_message(one, by_id, answers, header["names"]) for one in visible],
            "older": messages[0].position if len(messages) == _MAX_SHOWN_MESSAGES else None,
            "author": author or web_channel.people[0].id,
            "looks": [*((one, one.capitalize()) for one in self.looks), _PLAIN_LOOK],
            "replied": by_id.get(reply),
            "edited": target if target is not None and target.author is not None else None,
            "key": _generate_message_key(),
            "commands": self._list_commands(request.language),
        }

    async def _list_answers(
        self, channel: WebChannel, limit: int, until: float | None = None
    ) -> Sequence[StoredAnswer]:
        answer_search = AnswerSearch(conversation=channel.address.conversation, until=until)
        return (await self.answers.search(answer_search, limit)).answers

    async def _load_header(self, channel: WebChannel) -> dict[str, Any]:
        active = await self.resolver.resolve((channel.address.lane,))
        channel = await self.channels.get(channel.id) or channel
        presets = [one.preset for one in active.members]
        names = [*(one.character_name for one in presets), *(one.name for one in channel.people)]
        return {
            "channel": channel,
            "characters": presets,
            "faces": {one.character_name: self.find_picture_path(one.name) for one in presets},
            "is_inherited": active.first.scope is None,
            "names": names,
        }

    @route(f"POST {_PLAYGROUND_PATH}", ApiScope.OPERATE)
    async def create_channel(
        self, request: ConsoleRequest, name: ShortName = "", look: ShortName = ""
    ) -> web.Response:
        """Create a channel with the operator as its first person."""
        channel_name = name.strip() or "playground"
        channel = self._make_channel(channel_name, self._require_known_look(look), request)
        await self.channels.create(channel)
        return _redirect_to_channel(channel)

    @route(f"POST {_PLAYGROUND_PATH}/copies", ApiScope.OPERATE)
    async def copy_conversation(
        self,
        request: ConsoleRequest,
        conversation: Annotated[str, Field(min_length=1, max_length=300)],
        title: LongName = "",
        until: float | None = None,
    ) -> web.Response:
        """Copy a conversation, with its people and characters, to a new channel."""
        platform_look = conversation.partition(":")[0].partition("@")[0]
        platform_look = platform_look if platform_look in self.looks else ""
        channel = self._make_channel(title or conversation, platform_look, request)
        turns = await self.copies.copy(conversation, channel.address.conversation, until)
        if not turns:
            raise RequestRefused(404, translatable("This conversation has no messages to copy."))
        people = {one.speaker.id: one.speaker for one in turns if one.speaker is not None}
        if people:
            channel = replace(channel, people=tuple(people.values())[:_MAX_PEOPLE])
        await self.channels.create(channel)
        names = self.resolver.character_names({one.preset for one in turns if one.preset})
        messages = [_convert_turn(at, one, names) for at, one in enumerate(turns)]
        await self.channels.add(channel.id, messages)
        presets = [self.resolver.presets[name] for name in names if name in self.resolver.presets]
        if presets:
            await self.resolver.set_active_presets(channel.address.lane, presets, OPERATOR.id)
        return _redirect_to_channel(channel)

    @route(f"POST {_CHANNEL_PATH}/delete", ApiScope.OPERATE, redirect=_PLAYGROUND_PATH)
    async def delete_channel(self, channel: str) -> None:
        await self.channels.delete((await self._find(channel)).id)

    @route(f"POST {_CHANNEL_PATH}/look", ApiScope.OPERATE, redirect=_CHANNEL_PATH)
    async def set_look(self, channel: str, channel_look: ShortName = "") -> None:
        """Make a channel imitate another platform from now on."""
        look_name, web_channel = self._require_known_look(channel_look), await self._find(channel)
        await self.channels.change(web_channel.id, lambda one: replace(one, look=look_name))

    @route(f"POST {_CHANNEL_PATH}/people", ApiScope.OPERATE)
    async def add_person(self, channel: str, name: ShortName) -> web.Response:
        """Add a person to a channel, so that the operator can write as them."""
        web_channel = await self._find(channel)
        person = web_person(" ".join(name.split()))
        if not person.name:
            raise UserError(translatable("A person needs a name."))
        result = await self.channels.change(web_channel.id, partial(_add_person, person))
        if result is not None and person.id not in {one.id for one in result.people}:
            text = translatable("This channel is full: it has {count} people.", count=_MAX_PEOPLE)
            raise UserError(text)
        return _redirect_to_channel(web_channel, person)

    @route(f"GET {_CHANNEL_PATH}/events", ApiScope.READ)
    async def send_events(self, request: ConsoleRequest, channel: str) -> web.StreamResponse:
        """Send the channel's changes, as server-sent events."""
        web_channel = await self._find(channel)
        event_id = request.http.headers.get("Last-Event-ID") or request.http.query.get("after", "0")
        revision = parse_number(event_id, status=422)

        async def render_changes(changes: Sequence[WebMessage]) -> tuple[Sequence[str], str]:
            reply_ids = {one.reply_to for one in changes if one.author is not None and one.reply_to}
            messages = [await self.channels.find(web_channel.id, one) for one in sorted(reply_ids)]
            messages_by_id = {one.id: one for one in messages if one is not None}
            has_answer = any(map(is_finished, changes))
            answers = await self._list_answers(web_channel, _MAX_NEW_ANSWERS) if has_answer else ()
            header = await self._load_header(web_channel)

            def render_message(message: WebMessage) -> str:
                if message.is_deleted or not message.is_shown:
                    return ""
                message_view = view_message(message, messages_by_id, answers, header["names"])
                values = {"one": message_view, "channel": web_channel, "faces": header["faces"]}
                return self.renderer.render(Page("playground/message.html", values), request, "")

            about_page = Page("playground/about.html", header)
            return list(map(render_message, changes)), self.renderer.render(about_page, request, "")

        events = read_channel_events(self.channels, web_channel.id, revision, render_changes)
        return await stream_events(request, events, self.clock)

    @route(f"POST {_CHANNEL_PATH}/messages", ApiScope.OPERATE)
    async def say(
        self,
        channel: str,
        author: LongName,
        text: MessageText,
        key: MessageId,
        reply_to: ReplyTo = "",
    ) -> web.Response:
        """Send a message as a person; a repeated request with the same key sends nothing."""
        web_channel = await self._find(channel)
        person = _find_person(web_channel, author)
        message = WebMessage(key, person, "", self.clock.utc_now(), reply_to=reply_to or None)
        await self.channels.add(web_channel.id, [_set_text(message, text)])
        return _redirect_to_channel(web_channel, person)

    @route(f"POST {_MESSAGE_PATH}/edit", ApiScope.OPERATE, redirect=_CHANNEL_PATH)
    async def edit(self, channel: str, message: str, text: MessageText) -> None:
        old_message = await self._find_own_message(channel, message)
        if text != old_message.text:
            edited_message = replace(old_message, edited_at=self.clock.utc_now())
            await self.channels.replace(channel, _set_text(edited_message, text))

    @route(f"POST {_MESSAGE_PATH}/delete", ApiScope.OPERATE, redirect=_CHANNEL_PATH)
    async def delete(self, channel: str, message: str) -> None:
        old_message = await self._find_own_message(channel, message)
        await self.channels.replace(channel, old_message.to_tombstone())

    @route(f"POST {_MESSAGE_PATH}/press", ApiScope.OPERATE)
    async def press_button(
        self,
        channel: str,
        message: str,
        data: Annotated[str, Field(min_length=1, max_length=200)],
        author: LongName = "",
        value: LongName | None = None,
        key: MessageId | None = None,
    ) -> web.Response:
        """Press a button under a message, or choose a value from its menu."""
        web_channel = await self._find(channel)
        person = _find_person(web_channel, author or web_channel.people[0].id)
        values = () if value is None else (value,)
        key, now = key or _generate_message_key(), self.clock.utc_now()
        press = WebMessage(key, person, "", now, reply_to=message, press=data, values=values)
        await self.channels.add(web_channel.id, [press])
        return _redirect_to_channel(web_channel, person)

    @route(f"POST {_CHANNEL_PATH}/next", ApiScope.OPERATE, template="playground/next.html")
    async def show_next_answer(
        self,
        channel: str,
        author: LongName,
        text: Annotated[str, Field(max_length=100_000)] = "",
        reply_to: ReplyTo = "",
    ) -> Values:
        web_channel = await self._find(channel)
        person = _find_person(web_channel, author)
        draft = WebMessage(_DRAFT_MESSAGE_ID, person, text, self.clock.utc_now())
        target = await self.channels.find(web_channel.id, reply_to) if reply_to else None
        answer = await self.preview(self.to_incoming_message(web_channel, draft, person, target))
        header, prompt = await self._load_header(web_channel), answer.prompt
        names = {one.preset: one.name for one in answer.characters}
        return {
            "answer": answer,
            "prompt": prompt and view_prompt(prompt),
            "name": prompt and names.get(prompt.preset, prompt.preset),
            "choose_color": partial(choose_color, names=header["names"]),
            "faces": header["faces"],
        }

    async def _find(self, channel_id: str) -> WebChannel:
        channel = await self.channels.get(channel_id)
        if channel is None:
            raise RequestRefused(404, translatable("There is no such channel."))
        return channel

    async def _find_own_message(self, channel_id: str, message_id: str) -> WebMessage:
        channel = await self._find(channel_id)
        message = await self.channels.find(channel.id, message_id)
        if message is None or message.author is None or not message.is_shown:
            raise RequestRefused(404, translatable("There is no such message."))
        return message

    def _make_channel(self, name: str, look: str, request: ConsoleRequest) -> WebChannel:
        owner = web_person(login_name())
        now, language = self.clock.utc_now(), request.language
        return WebChannel(secrets.token_hex(6), name, look, (owner,), now, language)

    def _require_known_look(self, platform: str) -> str:
        if platform and platform not in self.looks:
            raise RequestRefused(422, translatable("There is no such platform."))
        return platform

    def _list_commands(self, language: str) -> Sequence[Mapping[str, object]]:
        presets = list(self.resolver.complete(""))
        return [
            {
                "text": text,
                "summary": translate(to_translatable(spec.summary), language),
                "options": [f"{one.name}" for one in spec.options],
                "values": presets
                if any(one.autocompletes for one in spec.options)
                else [choice for one in spec.options for choice in one.choices],
            }
            for text, spec in _list_named_commands(self.commands)
        ]


def _convert_turn(index: int, turn: Turn, names: Mapping[str, str]) -> WebMessage:
    face = None if turn.preset is None else Face(names[turn.preset])
    name = turn.message_id or f"copy-{index}"
    return WebMessage(name, turn.speaker, turn.text, turn.at, face=face, is_copied=True)


def _add_person(person: Person, channel: WebChannel) -> WebChannel:
    """Add a person to a channel, unless they are already in it or it is full."""
    is_present = any(one.id == person.id for one in channel.people)
    if is_present or len(channel.people) >= _MAX_PEOPLE:
        return channel
    return replace(channel, people=(*channel.people, person))


def _set_text(message: WebMessage, text: str) -> WebMessage:
    masked_text = mask_pasted_tokens(text)
    return replace(message, text=masked_text, has_masked_token=masked_text != text)


def _list_named_commands(commands: Sequence[CommandSpec]) -> Iterator[tuple[str, CommandSpec]]:
    """Yield (full name, command), with commands without actions first, as they are used most."""
    for spec in sorted(commands, key=lambda one: bool(one.actions)):
        yield from ((f"/{spec.name} {one.name}", one) for one in spec.actions)
        if not spec.actions:
            yield f"/{spec.name}", spec


def _find_person(channel: WebChannel, person_id: str) -> Person:
    person = next((one for one in channel.people if one.id == person_id), None)
    if person is None:
        raise RequestRefused(422, translatable("There is no such person in this channel."))
    return person


def _generate_message_key() -> str:
    return secrets.token_hex(12)


def _redirect_to_channel(channel: WebChannel, author: Person | None = None) -> web.Response:
    query_string = f"?author={quote(author.id, safe='')}" if author is not None else ""
    return redirect(f"{_PLAYGROUND_PATH}/{channel.id}{query_string}")


async def stream_events(
    request: ConsoleRequest, events: AsyncGenerator[str, None], clock: Clock
) -> web.StreamResponse:
    """Send events until the page closes, its session ends, or it should reconnect."""
    response = add_security_headers(web.StreamResponse())
    response.headers["Content-Type"] = "text/event-stream"
    await response.prepare(request.http)
    ends_at = clock.monotonic() + _MAX_STREAM_SECONDS
    next_check_at = clock.monotonic() + _SECONDS_BETWEEN_CHECKS
    # The page is gone, has stopped reading, or the database fails.
    with contextlib.suppress(ConnectionError, TimeoutError, StoreError):
        async with contextlib.aclosing(events):
            async for event in events:
                if clock.monotonic() >= next_check_at:
                    if clock.monotonic() >= ends_at or not await request.is_still_admitted():
                        break
                    next_check_at = clock.monotonic() + _SECONDS_BETWEEN_CHECKS
                async with asyncio.timeout(_WRITE_TIMEOUT_SECONDS):
                    await response.write(event.encode())
    return response


async def read_channel_events(
    channels: SqlWebChannels, channel_id: str, revision: int, render_changes: RenderChanges
) -> AsyncGenerator[str, None]:
    """Yield a channel's changes since a revision.

    An event's id is the channel's revision. A page that reconnects with an id gets each
    message changed since that revision once, in its current form, without earlier versions.
    """
    change_event = asyncio.Event()

    def signal_change(channel_ids: Sequence[str]) -> None:
        if channel_id in channel_ids:
            change_event.set()

    stop_watching = channels.on_change(signal_change)
    try:
        while True:
            change_event.clear()
            changes = await channels.list_changed_messages(channel_id, revision, _CHANGES_PER_READ)
            if not changes:
                yield ": waiting\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await change_event.wait()
                continue
            message_htmls, header_html = await render_changes(changes)
            for one, html in zip(changes, message_htmls, strict=True):
                event = {"id": one.id, "position": one.position, "html": html, "about": header_html}
                yield f"id: {one.revision}\ndata: {json.dumps(event)}\n\n"
                revision = one.revision
    finally:
        stop_watching()
