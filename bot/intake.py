"""Store received events in the inbox, then wake the workers of their conversations.

A channel has one history, or several (for example one per person). Each history is a conversation
of its own: its messages are processed in order, while other conversations run concurrently.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from typing_extensions import override

from bot.chat.command import FORM_ACTIONS, find_command, parse_button, parse_command
from bot.chat.incoming import (
    PERSON_HISTORY_PREFIX,
    Address,
    ButtonPress,
    ChatJoin,
    ForgetRequest,
    Incoming,
    IncomingMessage,
    MediaItem,
    MessageDeletion,
    MessageEdit,
    Person,
    Quote,
    ReactionChange,
    SayRequest,
    ThreadTitle,
    parse_address,
    to_storable_text,
)
from bot.chat.session import CHANNEL_TITLE_KEY, Consent, HistoryScope, MessageLocation
from bot.ports import ChatSettings, Intake
from bot.runtime.in_process import BoundedDict
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.telemetry.metrics import MESSAGES_RECEIVED, record_span
from bot.telemetry.secret_masker import mask_pasted_tokens

_MAX_REMEMBERED_EVENTS = 10_000
_MAX_STOPPABLE_RECAPS = 100  # per conversation that their authors can stop
_SINGLE_HISTORY_SCOPES = frozenset({None, HistoryScope.SHARED, HistoryScope.THREAD})
"""The history scopes with a single history per channel or thread; None is the default scope."""

_EventT = TypeVar("_EventT", IncomingMessage, ButtonPress, MessageDeletion)
ThreadEventT = TypeVar("ThreadEventT", bound=IncomingMessage | ButtonPress | ReactionChange)


class HistoryRouter:
    """Assigns each event to a history of its channel.

    `find_history_scope` gets the event's setting scopes, and the author's id if the bot should
    answer the event. It returns the channel's history scope, or None (a single history) if nobody
    chose one.
    """

    def __init__(
        self,
        find_history_scope: Callable[[Sequence[str], str | None], Awaitable[HistoryScope | None]],
        history_index: SqlHistoryIndex,
    ) -> None:
        self._find_history_scope = find_history_scope
        self._index = history_index
        # Histories by channel and message id, for messages that may not be stored yet.
        self._history_names = BoundedDict[tuple[str, str], str](_MAX_REMEMBERED_EVENTS)
        self._threads_with_history = BoundedDict[str, None](_MAX_REMEMBERED_EVENTS)
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def route_events(self, events: Sequence[Incoming]) -> AsyncIterator[Sequence[Incoming]]:
        """Yield each event once for each history that gets it; the block must store the events."""
        events = [one for each in events if (one := await self._route_reaction(each)) is not None]
        scopes = [
            await self._find_history_scope(event.scopes, _find_asker_id(event)) for event in events
        ]
        for event, scope in zip(events, scopes, strict=True):
            if isinstance(event, IncomingMessage) and scope in _SINGLE_HISTORY_SCOPES:
                await self._start_thread_history(event)
        if not any(scopes):
            yield events
            return
        async with self._lock:
            routed_events: list[Incoming] = []
            for event, scope in zip(events, scopes, strict=True):
                if scope is None:
                    routed_events.append(event)
                else:
                    routed_events += await self._route_event(event, scope, routed_events)
            yield routed_events

    async def assign_press_to_history(self, press: ButtonPress) -> ButtonPress:
        """Assign a button press to the history of the message with the button."""
        if await self._find_history_scope(press.scopes, None) is None:
            return press
        return await self._assign_press_to_history(press)

    async def assign_command_to_history(self, message: IncomingMessage) -> IncomingMessage:
        """Return a command with its history filled in, even if the command is never stored."""
        scope = await self._find_history_scope(message.scopes, _find_asker_id(message))
        if scope is None:
            return message
        return _with_history(message, await self._find_command_history(message, scope))

    async def _start_thread_history(self, message: IncomingMessage) -> None:
        if message.opened_from is None or len(message.scopes) < 2:
            return
        conversation = message.address.conversation
        if conversation in self._threads_with_history:
            return
        parent_address = parse_address(message.scopes[1])
        locations = await self._index.locate(parent_address, [message.opened_from])
        if locations and locations[0].turn_id is None:
            return  # the answer is still being written
        if locations:
            await self._index.create_branch(conversation, locations[0])
        self._threads_with_history[conversation] = None

    async def preview_route(self, message: IncomingMessage) -> IncomingMessage | None:
        """Return a message with the history it would get, or None if it would start a branch."""
        scope = await self._find_history_scope(message.scopes, _find_asker_id(message))
        if scope is None:
            return message
        if scope is not HistoryScope.REPLIES or _is_command(message):
            return _with_history(message, await self._find_history(message, scope, ()))
        quoted_id = message.quote.message_id if message.quote is not None else None
        locations = (
            await self._index.locate(message.address, [quoted_id]) if quoted_id is not None else ()
        )
        if not locations:
            return _with_history(message, _build_reply_history_name(message))
        location = next((one for one in locations if one.is_newest_message), None)
        if location is None and locations[0].turn_id is None:
            location = locations[0]
        if location is None:
            return None
        return _with_history(message, parse_address(location.conversation).history)

    async def _route_reaction(self, event: Incoming) -> Incoming | None:
        """Assign a reaction to its message's history; return None if the message is unknown."""
        if not isinstance(event, ReactionChange):
            return event
        locations = await self._index.locate(event.address, [event.message_id])
        if not locations:
            return None
        address = parse_address(locations[0].conversation)
        topic_scopes = () if address.channel in event.scopes else (address.channel,)
        return replace(event, address=address, scopes=(*topic_scopes, *event.scopes))

    async def _route_event(
        self, event: Incoming, scope: HistoryScope, earlier_events: Sequence[Incoming]
    ) -> Sequence[Incoming]:
        match event:
            case IncomingMessage():
                history = await self._find_history(event, scope, earlier_events)
                if event.message_id is not None:
                    self._history_names[event.address.channel, event.message_id] = history
                return [_with_history(event, history)]
            case MessageEdit(said=message):
                return await self._route_edit(event, message, scope)
            case MessageDeletion():
                return await self._route_deletion(event)
            case ButtonPress():
                return [await self._assign_press_to_history(event)]
            case ReactionChange() | ChatJoin() | ForgetRequest() | SayRequest():
                return [event]

    async def _find_history(
        self, message: IncomingMessage, scope: HistoryScope, earlier_events: Sequence[Incoming]
    ) -> str:
        if _is_command(message):
            return await self._find_command_history(message, scope)
        match scope:
            case HistoryScope.USER:
                return _build_personal_history_name(message)
            case HistoryScope.SHARED | HistoryScope.THREAD:
                return ""
            case HistoryScope.REPLIES:
                return await self._find_reply_history(message, earlier_events)

    async def _find_command_history(self, message: IncomingMessage, scope: HistoryScope) -> str:
        """Return the history of the message a command replies to, or else the author's newest."""
        # With personal histories, a person's /new must not end another person's history.
        command_name = message.text[1:].partition(" ")[0].lower()
        ends_session = scope is HistoryScope.USER and command_name == "new"
        if not ends_session and message.quote is not None and message.quote.message_id is not None:
            history = await self._find_message_history(message.address, message.quote.message_id)
            if history is not None:
                return history
        if scope is HistoryScope.USER:
            return _build_personal_history_name(message)
        if scope is HistoryScope.REPLIES:
            key = await self._index.find_newest_conversation(message.address, message.author.id)
            return parse_address(key).history if key else ""
        return ""

    async def _find_message_history(self, address: Address, message_id: str) -> str | None:
        locations = await self._index.locate(address, [message_id])
        if locations:
            return parse_address(locations[0].conversation).history
        return self._history_names.get((address.channel, message_id))

    async def _find_reply_history(
        self, message: IncomingMessage, earlier_events: Sequence[Incoming]
    ) -> str:
        new_history_name = _build_reply_history_name(message)
        quoted_id = message.quote.message_id if message.quote is not None else None
        if quoted_id is None:
            return new_history_name
        conversation = await self._index.find_conversation(message.address, message.external_key)
        if conversation is not None:  # the message was stored before
            return parse_address(conversation).history
        locations = await self._index.locate(message.address, [quoted_id])
        if not locations:
            return new_history_name
        continued_conversations = {one.address.conversation for one in earlier_events}
        for location in locations:
            if location.is_newest_message and location.conversation not in continued_conversations:
                return parse_address(location.conversation).history
        # An answer that is being written has no turn to branch from.
        if locations[0].turn_id is None:
            return parse_address(locations[0].conversation).history
        await self._index.create_branch(
            replace(message.address, history=new_history_name).conversation, locations[0]
        )
        return new_history_name

    async def _route_edit(
        self, edit: MessageEdit, message: IncomingMessage, scope: HistoryScope
    ) -> Sequence[MessageEdit]:
        """Return a copy of the edit for each history; only the first can cause an answer."""
        histories: Sequence[str] = ()
        if message.message_id is not None:
            locations = await self._index.locate(message.address, [message.message_id])
            histories = _list_history_names(locations)
        if not histories:
            history = self._history_names.get((message.address.channel, message.message_id or ""))
            if history is None:  # the original message was never stored
                history = await self._find_history(replace(message, quote=None), scope, ())
            histories = [history]
        first_history, *other_histories = histories
        return [
            replace(edit, said=_with_history(message, first_history)),
            *(
                replace(
                    edit,
                    external_key=f"{edit.external_key}@{one}",
                    said=replace(_with_history(message, one), is_late=True),
                )
                for one in other_histories
            ),
        ]

    async def _route_deletion(self, deletion: MessageDeletion) -> Sequence[MessageDeletion]:
        message_keys = [(deletion.address.channel, one) for one in deletion.message_ids]
        address, ids = deletion.address, deletion.message_ids
        histories = _list_history_names(
            await self._index.locate(address, ids, includes_copies=True)
        )
        histories += [
            self._history_names[one] for one in message_keys if one in self._history_names
        ]
        first_history, *other_histories = dict.fromkeys(histories) or [""]
        return [
            _with_history(deletion, first_history),
            *(
                replace(_with_history(deletion, one), external_key=f"{deletion.external_key}@{one}")
                for one in other_histories
            ),
        ]

    async def _assign_press_to_history(self, press: ButtonPress) -> ButtonPress:
        address, button = press.address, parse_button(press)
        if button is not None:
            event_key = button.part_name.removeprefix(f"{address.source}:").rpartition("/")[0]
            conversation = await self._index.find_conversation(address, event_key)
            if conversation is not None:
                return _with_history(press, parse_address(conversation).history)
        if press.message_id is not None:
            history = await self._find_message_history(address, press.message_id)
            return _with_history(press, history or "")
        return press


def _find_asker_id(event: Incoming) -> str | None:
    return (
        event.author.id if isinstance(event, IncomingMessage) and event.wake is not None else None
    )


def _with_history(event: _EventT, history_name: str) -> _EventT:
    return replace(event, address=replace(event.address, history=history_name))


def _list_history_names(locations: Sequence[MessageLocation]) -> list[str]:
    return list(dict.fromkeys(parse_address(one.conversation).history for one in locations))


def _build_personal_history_name(message: IncomingMessage) -> str:
    return f"{PERSON_HISTORY_PREFIX}{message.author.id.partition(':')[2]}"


def _build_reply_history_name(message: IncomingMessage) -> str:
    return f"replies={message.message_id or message.external_key}"


def _is_command(message: IncomingMessage) -> bool:
    return message.wake is not None and message.text[:1] == "/" and message.text[1:2].isalnum()


@dataclass(eq=False, repr=False)
class InboxIntake(Intake):
    """Stores received events, then wakes the workers of their conversations.

    Words of people who opted out are removed first. `filter_event` returns the part of an event
    that may be stored, or None to drop the event.
    """

    inbox: SqlInbox
    wake_workers: Callable[[Sequence[str]], None]
    announce_urgent: Callable[[Sequence[Incoming]], None] = lambda _messages: None
    """Announces the stored events before workers wake, so that urgent events overtake others."""
    router: HistoryRouter | None = None
    """Assigns histories; None if events already contain their history."""
    filter_event: Callable[[Incoming], Incoming | None] = lambda message: message
    find_opted_out: Callable[[Sequence[Incoming]], Awaitable[Collection[str]]] | None = None
    """Returns the ids of people in these events who opted out; None if nobody can opt out."""
    settings: ChatSettings | None = None
    """The settings in which new titles of channels are stored."""

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        started_at = time.time()
        opted_out_ids = await self.find_opted_out(messages) if self.find_opted_out else ()
        events = [
            one for each in messages if (one := redact_event(each, opted_out_ids)) is not None
        ]
        kept_events = [one for each in events if (one := self.filter_event(each)) is not None]
        storable_events = [to_storable_event(one) for one in kept_events]
        if self.router is None:
            await self.inbox.receive(storable_events, cursors)
        else:
            async with self.router.route_events(storable_events) as routed_events:
                storable_events = [await self._separate_recap(one) for one in routed_events]
                await self.inbox.receive(storable_events, cursors)
        for one in messages:
            MESSAGES_RECEIVED.labels(one.address.platform).inc()
        for one in kept_events:
            turn_name, platform = f"{one.address.source}:{one.external_key}", one.address.platform
            attributes = {"troupe.platform": platform}
            record_span("receive", turn_name, started_at, time.time(), attributes=attributes)
        self.announce_urgent(storable_events)
        self.wake_workers(list(dict.fromkeys(one.address.conversation for one in storable_events)))
        if self.settings is not None:
            await _store_new_titles(self.settings, events)

    async def _separate_recap(self, event: Incoming) -> Incoming:
        """Move a `/recap`, which is slow, and its author's `/stop` to a separate queue."""
        if not isinstance(event, IncomingMessage) or event.wake is None:
            return event
        command = parse_command(event.text) if event.text.startswith("/") else None
        if command is None or command.name not in {"recap", "stop"}:
            return event
        recap_address, author_ids = event.address.recap_queue_address, {event.author.id}
        if command.name == "stop":
            limit = _MAX_STOPPABLE_RECAPS
            recaps = await self.inbox.newest_unanswered([recap_address.conversation], limit, limit)
            author_ids = {one.author.id for one in recaps if isinstance(one, IncomingMessage)}
        return replace(event, address=recap_address) if event.author.id in author_ids else event

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        return await self.inbox.cursors(prefix)


async def _store_new_titles(settings: ChatSettings, events: Sequence[Incoming]) -> None:
    titles = {
        one.address.channel: to_storable_text(one.channel_title)
        for one in events
        if isinstance(one, IncomingMessage) and one.channel_title
    }
    stored_titles = await settings.get_all(list(titles), CHANNEL_TITLE_KEY) if titles else {}
    for channel, title in titles.items():
        if stored_titles.get(channel) != title:
            await settings.set(channel, CHANNEL_TITLE_KEY, title, "")


_COMMANDS_ALLOWED_AFTER_OPT_OUT = (
    *(f"settings me {one}" for one in (*Consent, "reset")),
    *("settings me", "forget me", "privacy show", "privacy", "export", "help"),
)
"""The commands with which people who opted out can still manage their own data."""


def redact_event(event: Incoming, opted_out_ids: Collection[str]) -> Incoming | None:
    """Remove the words of people who opted out from an event; return None if nothing is left."""
    if not opted_out_ids:
        return event
    if isinstance(event, IncomingMessage | ButtonPress | ReactionChange):
        event = _remove_thread_title(event, opted_out_ids)
    match event:
        case IncomingMessage():
            return redact_message(event, opted_out_ids)
        case MessageEdit(said=message) if message.author.id in opted_out_ids:
            return None
        case MessageEdit(said=message):
            return replace(event, said=_redact_quotes(message, opted_out_ids))
        case ButtonPress(author=Person(id=person)) if person in opted_out_ids:
            button = parse_button(event)
            is_form_button = button is not None and button.action in FORM_ACTIONS
            values = () if is_form_button else event.values
            return replace(event, author=replace(event.author, name=""), values=values)
        case ChatJoin(author=Person(id=person)) if person in opted_out_ids:
            return replace(event, author=None)
        case ReactionChange(author=Person(id=person)) if person in opted_out_ids:
            return None
        case _:
            return event


def redact_message(
    message: IncomingMessage, opted_out_ids: Collection[str]
) -> IncomingMessage | None:
    """Remove the words of people who opted out from a message.

    Return None if the author opted out and the message is not addressed to the bot.
    """
    author, quote = message.author, message.quote
    if author.id not in opted_out_ids:
        return _redact_quotes(message, opted_out_ids)
    if quote is not None:  # only the history shows whether the webhook is the bot's
        quote = Quote(None, quote.message_id, "", by_webhook=True) if quote.by_webhook else None
    if message.wake is None and quote is None:
        return None
    is_addressed = message.wake is not None and not message.is_forward
    command = find_command(message.text, _COMMANDS_ALLOWED_AFTER_OPT_OUT) if is_addressed else ""
    return replace(
        message,
        author=replace(author, name=""),
        text=f"/{command}" if command else "",
        is_withheld=not command,
        quote=quote,
        attachments=(),
        thread_title=None,
        mentions=(),
        album=None,
        is_forward=False,
        forwarded_from="",
    )


def _redact_quotes(message: IncomingMessage, opted_out_ids: Collection[str]) -> IncomingMessage:
    message, quote = _remove_thread_title(message, opted_out_ids), message.quote
    if quote is not None and quote.author is not None and quote.author.id in opted_out_ids:
        author = replace(quote.author, name="")
        message = replace(message, quote=replace(quote, author=author, text="", attachments=()))
    elif quote is not None and quote.forwarded_from in opted_out_ids:
        message = replace(message, quote=replace(quote, text="", attachments=()))
    if message.forwarded_from in opted_out_ids:
        return replace(message, text="", attachments=())
    return message


def _remove_thread_title(event: ThreadEventT, opted_out_ids: Collection[str]) -> ThreadEventT:
    if event.thread_title is None or event.thread_title.person not in opted_out_ids:
        return event
    if isinstance(event, IncomingMessage):
        event = replace(event, channel_title="")
    return replace(event, thread_title=None)


def to_storable_event(incoming: Incoming) -> Incoming:
    """Return an event that a database can store, with pasted secrets masked."""
    match incoming:
        case IncomingMessage():
            return to_storable_message(incoming)
        case MessageEdit():
            return replace(incoming, said=to_storable_message(incoming.said))
        case ButtonPress():
            values = tuple(to_storable_text(value) for value in incoming.values)
            masked_values = tuple(map(mask_pasted_tokens, values))
            return replace(
                incoming,
                external_key=to_storable_text(incoming.external_key),
                author=_to_storable_person(incoming.author),
                data=to_storable_text(incoming.data),
                values=masked_values,
                has_masked_token=incoming.has_masked_token or masked_values != values,
                thread_title=_to_storable_title(incoming.thread_title),
            )
        case ReactionChange():
            author, title = incoming.author, _to_storable_title(incoming.thread_title)
            return replace(incoming, author=_to_storable_person(author), thread_title=title)
        case ChatJoin(author=Person() as author):
            return replace(incoming, author=_to_storable_person(author))
        case SayRequest(text=text):
            return replace(incoming, text=mask_pasted_tokens(to_storable_text(text)))
        case ChatJoin() | MessageDeletion() | ForgetRequest():
            return incoming


def to_storable_message(message: IncomingMessage) -> IncomingMessage:
    """Return a message that a database can store, with pasted secrets masked."""
    quote = message.quote
    if quote is not None:
        quote = replace(
            quote,
            text=mask_pasted_tokens(to_storable_text(quote.text)),
            author=_to_storable_person(quote.author) if quote.author else None,
            attachments=_to_storable_attachments(quote.attachments),
        )
    text = to_storable_text(message.text)
    safe_text, attachments = mask_pasted_tokens(text), _to_storable_attachments(message.attachments)
    author, title = _to_storable_person(message.author), _to_storable_title(message.thread_title)
    if (safe_text, quote, author, attachments, title) == (
        *(message.text, message.quote, message.author),
        *(message.attachments, message.thread_title),
    ):
        return message  # the usual case; comparing is cheaper than copying
    pairs = zip(message.attachments, attachments, strict=True)
    is_masked = safe_text != text or any(
        to_storable_text(item.name) != masked_item.name for item, masked_item in pairs
    )
    return replace(
        message,
        text=safe_text,
        has_masked_token=message.has_masked_token or is_masked,
        quote=quote,
        author=author,
        attachments=attachments,
        thread_title=title,
    )


def _to_storable_title(title: ThreadTitle | None) -> ThreadTitle | None:
    return title and replace(title, text=mask_pasted_tokens(to_storable_text(title.text)))


def _to_storable_person(person: Person) -> Person:
    name = to_storable_text(person.name)
    return person if name == person.name else replace(person, name=name)


def _to_storable_attachments(items: tuple[MediaItem, ...]) -> tuple[MediaItem, ...]:
    return tuple(replace(one, name=mask_pasted_tokens(to_storable_text(one.name))) for one in items)
