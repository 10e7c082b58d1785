"""Store received messages in the inbox, then wake the conversations that they belong to."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import (
    Deleted,
    Edited,
    ForgetRequested,
    Incoming,
    Joined,
    MediaItem,
    Person,
    Pressed,
    Said,
)
from bot.chat.storable import make_storable
from bot.intake.histories import HistoryRouter
from bot.ports import Inbox, Intake
from bot.telemetry.metrics import MESSAGES_RECEIVED
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.telemetry.traces import record_span


def _announce_nothing(_messages: Sequence[Incoming]) -> None:
    return


def _keep_all(message: Incoming) -> Incoming:
    return message


class InboxIntake(Intake):
    """Stores messages, then tells who works on them."""

    def __init__(
        self,
        inbox: Inbox,
        wake: Callable[[Sequence[str]], None],
        announce: Callable[[Sequence[Incoming]], None] = _announce_nothing,
        router: HistoryRouter | None = None,
        keep: Callable[[Incoming], Incoming | None] = _keep_all,
    ) -> None:
        """Take the inbox, and who is told after messages are committed.

        Args:
            inbox: stores the messages.
            wake: takes their conversations.
            announce: takes the messages, some of which overtake those before them.
            router: decides which history of its channel each belongs to; None: they say it.
            keep: returns what to store of a message; None: nothing of it may be stored.
        """
        self._inbox = inbox
        self._wake = wake
        self._announce = announce
        self._router = router
        self._keep = keep

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        began = time.time()
        kept = [one for each in messages if (one := self._keep(each)) is not None]
        storable = [with_storable_text(one) for one in kept]
        if self._router is None:
            await self._inbox.receive(storable, cursors)
        else:
            async with self._router.routed(storable) as routed:
                storable = list(routed)
                await self._inbox.receive(storable, cursors)
        for one in messages:
            MESSAGES_RECEIVED.labels(one.address.platform).inc()
        for one in kept:
            turn, platform = f"{one.address.source}:{one.external_key}", one.address.platform
            attributes = {"troupe.platform": platform}
            record_span("receive", turn, began, time.time(), attributes=attributes)
        self._announce(storable)
        self._wake(list(dict.fromkeys(one.address.conversation for one in storable)))

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        return await self._inbox.cursors(prefix)


def with_storable_text(incoming: Incoming) -> Incoming:
    """Replace what databases cannot or should not store in all texts that people wrote."""
    match incoming:
        case Said():
            return storable_said(incoming)
        case Edited():
            return replace(incoming, said=storable_said(incoming.said))
        case Pressed():
            values = tuple(make_storable(value) for value in incoming.values)
            masked = tuple(map(mask_pasted_tokens, values))
            return replace(
                incoming,
                external_key=make_storable(incoming.external_key),
                author=_person(incoming.author),
                data=make_storable(incoming.data),
                values=masked,
                has_masked_token=masked != values,
                thread_title=_title(incoming.thread_title),
            )
        case Joined(author=Person() as author):
            return replace(incoming, author=_person(author))
        case Joined() | Deleted() | ForgetRequested():
            return incoming


def storable_said(said: Said) -> Said:
    """Replace what databases cannot or should not store in the texts of a message."""
    quote = said.quote
    if quote is not None:
        quote = replace(
            quote,
            text=mask_pasted_tokens(make_storable(quote.text)),
            author=_person(quote.author) if quote.author else None,
            attachments=_attachments(quote.attachments),
        )
    text = make_storable(said.text)
    masked, attachments = mask_pasted_tokens(text), _attachments(said.attachments)
    author, title = _person(said.author), _title(said.thread_title)
    found = (said.text, said.quote, said.author, said.attachments, said.thread_title)
    if (masked, quote, author, attachments, title) == found:
        return said  # nearly always; a copy of so many fields costs more than all the checks
    names = zip(said.attachments, attachments, strict=True)
    is_masked = masked != text or any(make_storable(a.name) != b.name for a, b in names)
    return replace(
        said,
        text=masked,
        has_masked_token=said.has_masked_token or is_masked,
        quote=quote,
        author=author,
        attachments=attachments,
        thread_title=title,
    )


def _title(title: str) -> str:
    return mask_pasted_tokens(make_storable(title)) if title else title


def _person(person: Person) -> Person:
    name = make_storable(person.name)
    return person if name == person.name else replace(person, name=name)


def _attachments(items: tuple[MediaItem, ...]) -> tuple[MediaItem, ...]:
    """A poll's question is a name, too."""
    return tuple(replace(one, name=mask_pasted_tokens(make_storable(one.name))) for one in items)
