"""Order the requests that wait for a provider: by urgency, then fairly among chats."""

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum

_MAX_CHATS_REMEMBERED = 1000


class Urgency(IntEnum):
    """What a request is for; of those that wait, the lowest value goes first."""

    QUESTION = 0
    """Somebody has addressed the bot and waits for its answer."""

    REACTION = 1
    """A character takes part in what others talk about."""

    BACKGROUND = 2
    """Nobody in a chat waits for it: summaries, and what the operator tries out."""


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits for a slot."""

    chat: str
    urgency: Urgency
    number: int
    """Counts the requests as they come."""
    may_try: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the next free slot is this request's, and from the end of its patience on."""
    has_waited_long: bool = False


class SlotQueue:
    """Gives the turn to one waiting request at a time.

    Among equally urgent requests, it is that of the chat that was served the longest ago: a chat
    in which a hundred people ask at once delays another chat by one answer, not by a hundred.
    """

    def __init__(self) -> None:
        self._waiting: list[WaitingRequest] = []
        self._served_at: dict[str, int] = {}  # by chat, in numbers of `_count`
        self._full_chats: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, chat: str, urgency: Urgency) -> WaitingRequest:
        """Add a request."""
        self._count += 1
        request = WaitingRequest(chat, urgency, self._count)
        self._waiting.append(request)
        self._give_turn()
        return request

    def leave(self, request: WaitingRequest, *, is_served: bool) -> None:
        """Remove a request, because it has got a slot or does not want one any more."""
        self._waiting.remove(request)
        self._full_chats.discard(request.chat)  # perhaps nobody else would look again
        if is_served:
            self._set_served(request.chat)
        self._give_turn()

    def note_served(self, chat: str) -> None:
        """Note that a chat has got a slot, maybe elsewhere: those of other chats go before it."""
        self._set_served(chat)
        self._give_turn()

    def _set_served(self, chat: str) -> None:
        self._count += 1
        self._served_at.pop(chat, None)  # the newest is the last
        self._served_at[chat] = self._count
        if len(self._served_at) > _MAX_CHATS_REMEMBERED:
            del self._served_at[next(iter(self._served_at))]

    def end_patience(self, request: WaitingRequest) -> None:
        """Let a request try once more, whoever's turn it is."""
        request.has_waited_long = True
        request.may_try.set()

    def set_full(self, chat: str, *, is_full: bool) -> None:
        """Note whether a chat holds as many slots as it may: then others go first."""
        if is_full:
            self._full_chats.add(chat)
        else:
            self._full_chats.discard(chat)
        self._give_turn()

    def position(self, request: WaitingRequest) -> int:
        """Return the place of a request if nobody else comes; 1: it is the next."""
        own = self._order(request)
        return 1 + sum(self._order(each) < own for each in self._waiting)

    def _give_turn(self) -> None:
        following = min(self._waiting, key=self._order, default=None)
        for each in self._waiting:
            if each is following:
                each.may_try.set()
            elif not each.has_waited_long:
                each.may_try.clear()

    def _order(self, request: WaitingRequest) -> tuple[bool, int, int, int]:
        served_at = self._served_at.get(request.chat, 0)
        return request.chat in self._full_chats, request.urgency, served_at, request.number
