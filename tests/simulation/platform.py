"""A platform in memory that fulfills the contract of the port and no more.

Requests that have been sent arrive even if their process dies. A response may be lost, and then
the platform may still accept the request until the settle time is over. The only history is the
visible messages.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import override

from bot.chat.incoming import Address, IncomingMessage
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.errors import MessageNotFound, OutcomeUnknown, PlatformError, RateLimited, Unreachable
from bot.ports import Intake, Surface
from tests.samples import make_incoming
from tests.simulation.event_loop import SimulatedLoop, current_process
from tests.support.transcripts import PostedMessage

T = TypeVar("T")

SETTLE_SECONDS = 10.0
_NONCE_SECONDS = 180.0
"""How long a repeated nonce is recognised; Discord says "a few minutes"."""
_LATEST_SECONDS = 60.0
_POLL_SECONDS = 5.0
_BATCH = 20


@dataclass(slots=True)
class _Post:
    chat: str
    by_bot: bool
    text: str


@dataclass(slots=True)
class FaultShares:
    """The probabilities of each kind of request fault."""

    unreachable: float = 0.0
    """The share of requests that never arrive."""
    limited: float = 0.0
    lost: float = 0.0
    """The share of requests with a lost response, which may or may not take effect."""
    late: float = 0.0
    """The share of sends with a lost response that take effect after the settle time."""


@dataclass(slots=True)
class SimulatedPlatform(Surface):
    """The servers of one platform.

    Args:
        name: The platform's name.
        has_nonces: Whether repeated sends with the same nonce appear only once.
        loop: Provides the time.
        rng: Decides the outcome of requests.
    """

    name: str
    has_nonces: bool
    loop: SimulatedLoop
    rng: random.Random
    faults: FaultShares = field(default_factory=FaultShares)
    lost_answers: int = 0
    accepted_late: int = 0
    _posts: dict[int, _Post] = field(default_factory=dict)
    _updates: list[tuple[int, IncomingMessage]] = field(default_factory=list)
    _nonces: dict[str, tuple[float, int]] = field(default_factory=dict)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    # --- people ------------------------------------------------------------------------------

    def say(self, chat: str, text: str) -> None:
        """Let a person write to the bot."""
        number = next(self._ids)
        self._posts[number] = _Post(chat, by_bot=False, text=text)
        said = make_incoming(text, key=f"{chat}:{number}", chat=chat, platform=self.name)
        self._updates.append((number, said))

    def history(self) -> list[PostedMessage]:
        """Return the visible messages, in the order of each chat."""
        return [
            PostedMessage(f"{self.name}:{post.chat}", post.by_bot, post.text)
            for post in self._posts.values()
        ]

    # --- receiving ---------------------------------------------------------------------------

    async def receive(self, intake: Intake) -> None:
        """Pass people's messages to an intake until cancelled, starting at its cursor."""
        cursor = f"{self.name}:offset"
        offset = int((await intake.cursors(cursor)).get(cursor, "0"))
        while True:
            updates = await self._updates_after(offset)
            if updates:
                offset = updates[-1][0]
                await intake.receive([said for _, said in updates], {cursor: str(offset)})

    async def _updates_after(self, offset: int) -> Sequence[tuple[int, IncomingMessage]]:
        """Drop all updates up to an offset, and return later ones; wait if there are none."""

        def confirm() -> None:
            self._updates = [one for one in self._updates if one[0] > offset]

        await self._request(confirm, may_fail=False)
        given_up = self.loop.time() + _POLL_SECONDS
        while self.loop.time() < given_up:
            if found := [one for one in self._updates if one[0] > offset]:
                return found[:_BATCH]
            await self._pause(self.rng.uniform(0.05, 1))
        return ()

    # --- the surface -------------------------------------------------------------------------

    @override
    def limits(self, address: Address) -> Limits:
        return Limits(
            max_units=220,
            unit="characters",
            seconds_between_edits=1.2,
            typing_seconds=0,
            deduplicates_sends=self.has_nonces,
        )

    @override
    async def send(self, message: OutgoingMessage) -> str:
        return await self._request(lambda: self._post(message), may_be_late=True)

    def _post(self, message: OutgoingMessage) -> str:
        at, number = self._nonces.get(message.nonce, (-_NONCE_SECONDS, 0))
        if not self.has_nonces or self.loop.time() - at >= _NONCE_SECONDS:
            number = next(self._ids)
            text = message.content.text
            self._posts[number] = _Post(message.address.chat, by_bot=True, text=text)
            self._nonces[message.nonce] = (self.loop.time(), number)
        return str(number)

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        def change() -> None:
            if int(message_id) not in self._posts:
                raise MessageNotFound(message_id)
            self._posts[int(message_id)].text = content.text

        await self._request(change)

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        await self._request(lambda: self._posts.pop(int(message_id), None))

    @override
    async def typing(self, address: Address) -> None:
        await self._pause(0.01)

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        passed = [] if search.copy_id else [int(one) for one in search.excluded_ids]
        oldest = max([int(search.after or 0), *passed])

        def look() -> str | None:
            for number, post in self._posts.items():
                is_candidate = (
                    number > oldest and str(number) not in search.excluded_ids and post.by_bot
                )
                if not is_candidate or post.chat != message.address.chat:
                    continue
                if not self.has_nonces:  # as on Telegram, a search edits what may be the message
                    post.text = message.content.text
                if post.text == message.content.text:
                    return str(number)
            return None

        return await self._request(look)

    async def _request(
        self, carry_out: Callable[[], T], *, may_fail: bool = True, may_be_late: bool = False
    ) -> T:
        """Send a request to the servers.

        Args:
            carry_out: The effect on the servers.
            may_fail: Whether the request may fail.
            may_be_late: Whether it may take effect long after the client gave up.
        """
        client, done = current_process(), self.loop.create_future()
        there, back = self.rng.uniform(0.01, 0.4), self.rng.uniform(0.01, 0.4)
        fate = self.rng.random() if may_fail else 1.0

        def answer(error: Exception | None, value: T | None = None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def serve(*, is_answered: bool) -> None:
            value: T | None = None
            error: Exception | None = None
            try:
                value = carry_out()
            except PlatformError as raised:
                error = raised
            if is_answered:
                self.loop.within(client, back, lambda: answer(error, value))

        faults = self.faults
        if fate < faults.unreachable:
            failed: PlatformError = Unreachable("refused")
            self.loop.within(client, there, lambda: answer(failed))
        elif fate < faults.unreachable + faults.limited:
            limited = RateLimited(self.rng.uniform(0.5, 8))
            self.loop.within(client, there + back, lambda: answer(limited))
        elif fate < faults.unreachable + faults.limited + faults.lost:
            given_up = self.rng.uniform(0.5, 9)
            lag = self._lag(given_up, may_be_late=may_be_late)
            self.loop.outside(lag, lambda: serve(is_answered=False))
            unknown = OutcomeUnknown("the answer was lost")
            self.loop.within(client, given_up, lambda: answer(unknown))
        else:
            self.loop.outside(there, lambda: serve(is_answered=True))
        result: T = await done
        return result

    def _lag(self, given_up: float, *, may_be_late: bool) -> float:
        """Return the delay before a request with a lost response takes effect."""
        self.lost_answers += 1
        if may_be_late and self.faults.late and self.rng.random() < self.faults.late:
            self.accepted_late += 1
            return self.rng.uniform(SETTLE_SECONDS + given_up, _LATEST_SECONDS)
        return self.rng.uniform(0, SETTLE_SECONDS * 0.95 if may_be_late else given_up)

    async def _pause(self, seconds: float) -> None:
        done = self.loop.create_future()
        self.loop.within(
            current_process(), seconds, lambda: None if done.done() else done.set_result(None)
        )
        await done
