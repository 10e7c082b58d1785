"""Over simulated hours, calls stay within the platforms' limits for chats and bots."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.delivery.pacing import RateLimitedSurface
from bot.errors import RateLimited
from bot.platforms.discord.rest import RestClient
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.surface import DiscordSurface
from bot.platforms.telegram.api import BotApi
from bot.platforms.telegram.settings import TelegramSettings
from bot.platforms.telegram.surface import TelegramSurface
from bot.platforms.tokens import BotToken
from bot.ports import Surface
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from tests.fakes import FakeClock, FakeSurface
from tests.waiting import PATIENCE_SECONDS

GROUPS = [Address("telegram", f"-{number}") for number in range(1, 3)]
PRIVATE = [Address("telegram", str(number)) for number in range(1, 3)]
CHATS = GROUPS + PRIVATE
CALLS_A_MINUTE = 20
"""A group's limit for messages and edits together."""


@dataclass(frozen=True)
class Answer:
    """An answer in a simulation: its chat, the time since the previous answer, and its parts."""

    chat: int
    seconds_after: float
    seconds_to_write: float
    parts: int


answers = st.lists(
    st.builds(
        Answer,
        chat=st.integers(0, len(CHATS) - 1),
        seconds_after=st.floats(0, 60) | st.just(0.0),
        seconds_to_write=st.floats(0, 120),
        parts=st.integers(1, 4),
    ),
    min_size=1,
    max_size=60,
)
refusals = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 140), st.sampled_from(["chat", "bot"])),
    max_size=4,
)


@dataclass(frozen=True)
class Rules:
    """A platform's limits on calls that its headers do not report (RELIABILITY 4)."""

    bot_a_second: int
    group_a_minute: int | None = None
    chat_in_ten_seconds: int | None = None


TELEGRAM = Rules(30, CALLS_A_MINUTE, 10)
DISCORD = Rules(50)


class StrictPlatform(FakeSurface):
    """A platform that counts violations of its limits, and refuses some calls."""

    def __init__(self, surface: Surface, rules: Rules, clock: FakeClock) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.refusals: dict[int, RateLimited] = {}  # by the number of the call
        self.count = 0
        self._surface, self._rules, self._clock = surface, rules, clock
        self._calls: defaultdict[str, list[float]] = defaultdict(list)
        self._refused_until: defaultdict[str, float] = defaultdict(float)

    @override
    def limits(self, address: Address) -> Limits:
        return self._surface.limits(address)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        self._judge(message.address)
        return await super().send(message)

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        self._judge(address)

    @override
    async def typing(self, address: Address) -> None:
        self._check_refusals(address, self._clock.now())

    def _judge(self, address: Address) -> None:
        now, chat, bot = self._clock.now(), address.lane, address.source
        self._check_refusals(address, now)
        self.count += 1
        for key in (chat, bot):
            self._calls[key].append(now)
        rules = self._rules
        in_group = rules.group_a_minute if int(address.chat) < 0 else None
        if in_group is not None and self._newest(chat, 60) >= in_group:
            self.violations.append(f"{chat}: {self._newest(chat, 60)} calls in a minute")
        in_chat = rules.chat_in_ten_seconds
        if in_chat is not None and self._newest(chat, 10) > in_chat:
            self.violations.append(f"{chat}: more than one call a second")
        if self._newest(bot, 1) > rules.bot_a_second:
            self.violations.append(f"more than {rules.bot_a_second} calls a second")
        if refusal := self.refusals.get(self.count):
            key = chat if refusal.scope == "chat" else bot
            self._refused_until[key] = now + refusal.retry_after_seconds
            raise refusal

    def _check_refusals(self, address: Address, now: float) -> None:
        if any(now < self._refused_until[key] for key in (address.lane, address.source)):
            self.violations.append(f"{address.lane}: called before the time that was said")

    def _newest(self, key: str, seconds: float) -> int:
        """Return the number of recent calls within this many seconds."""
        begin = self._clock.now() - seconds
        return sum(at > begin for at in self._calls[key])


class Simulation:
    """Sends answers as the service does: the outbox sends the first and final text."""

    def __init__(self, surface: Surface, rules: Rules, clock: FakeClock) -> None:
        self.clock = clock
        self.platform = StrictPlatform(surface, rules, clock)
        self.finished = 0
        rates = InProcessRateLimits(clock)
        self._outbox = RateLimitedSurface(self.platform, rates, clock)
        self._live = RateLimitedSurface(self.platform, rates, clock, is_best_effort=True)
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def show(self, answer: Answer, wait_seconds: float) -> None:
        address = CHATS[answer.chat]
        await self.clock.sleep(wait_seconds)
        await self._deliver(address, is_edit=False)
        ends_at = self.clock.now() + answer.seconds_to_write
        while self.clock.now() < ends_at:
            pause = self.platform.limits(address).seconds_between_edits
            await self.clock.sleep(pause)
            try:
                await self._live.typing(address)
                await self._live.edit(address, "1", MessageContent("text"), interaction=None)
            except RateLimited as error:
                await self.clock.sleep(max(0.01, error.retry_after_seconds))
        await self._deliver(address, is_edit=True)
        for _ in range(1, answer.parts):
            await self._deliver(address, is_edit=False)
        self.finished += 1

    async def _deliver(self, address: Address, *, is_edit: bool) -> None:
        """Send the rows in the outbox in order, as soon as the limits allow it."""
        content = MessageContent("text")
        async with self._lanes[address.lane]:
            while True:
                try:
                    if is_edit:
                        await self._outbox.edit(address, "1", content, interaction=None)
                    else:
                        nonce = str(self.platform.count)
                        await self._outbox.send(OutgoingMessage(address, content, nonce))
                except RateLimited as error:
                    await self.clock.sleep(max(0.01, error.retry_after_seconds))
                else:
                    return


@asynccontextmanager
async def simulation(platform: str = "telegram") -> AsyncIterator[Simulation]:
    if platform == "discord":
        rest = RestClient(BotToken(DiscordSettings.model_validate({"token": "abc"}), SystemClock()))
        try:
            yield Simulation(DiscordSurface(rest), DISCORD, FakeClock())
        finally:
            await rest.close()
        return
    api = BotApi(TelegramSettings.model_validate({"token": "1:abc"}), SystemClock())
    try:
        yield Simulation(TelegramSurface(api), TELEGRAM, FakeClock())
    finally:
        await api.close()


@pytest.mark.parametrize("platform", ["telegram", "discord"])
@settings(max_examples=25, deadline=None)
@given(plan=answers, refused=refusals)
async def test_every_answer_is_shown_without_exceeding_a_rate_limit(
    platform: str, plan: list[Answer], refused: list[tuple[int, int, str]]
) -> None:
    async with simulation(platform) as run:
        for number, seconds, scope in refused:
            error = RateLimited(seconds, "bot" if scope == "bot" else "chat")
            run.platform.refusals[number] = error
        moment, tasks = 0.0, []
        for answer in plan:
            moment += answer.seconds_after
            tasks.append(asyncio.create_task(run.show(answer, moment)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while run.finished < len(plan):
                await run.clock.advance(600)
        await asyncio.wait(tasks)
        assert run.platform.violations == []


async def test_group_with_many_answers_gets_under_20_calls_a_minute() -> None:
    async with simulation() as run:
        plan = [Answer(0, 0, 20.0, 2)] * 60
        shown = [
            asyncio.create_task(run.show(one, number * 20.0)) for number, one in enumerate(plan)
        ]
        await run.clock.advance(7200)
        assert run.finished == 60
        assert run.platform.violations == []
        assert run.platform.count > 60 * 4, "live edits were shown as well"
        await asyncio.wait(shown)
