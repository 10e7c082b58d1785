"""Rate limits: calls are counted per chat across processes; refusals block their scope."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.chat.rate import CallWindow, RateLimitScope
from bot.delivery.pacing import DeliverySettings, RateLimitedSurface
from bot.errors import RateLimited, RefusedScope
from bot.platforms.discord.surface import DISCORD_LIMITS as DISCORD
from bot.platforms.telegram.limits import GROUP_LIMITS as TELEGRAM_GROUP
from bot.platforms.telegram.limits import PRIVATE_LIMITS as TELEGRAM_PRIVATE
from bot.runtime.in_process import InProcessRateLimits
from tests.fakes import CHAT, LIMITS, FakeClock, FakeSurface

GROUP = replace(LIMITS, chat_call_windows=(CallWindow(5, 60.0, reserved_count=2),))
TEXT = MessageContent("text")


class Setup:
    """The rate-limited surfaces of a sender and of live edits."""

    def __init__(self, surface: FakeSurface, *, learns: bool = False) -> None:
        self.clock, self.surface = FakeClock(), surface
        rates = InProcessRateLimits(self.clock)
        settings = DeliverySettings(pacing="learned" if learns else "strict")
        self.outbox = RateLimitedSurface(surface, rates, self.clock, settings=settings)
        self.live = RateLimitedSurface(surface, rates, self.clock, is_best_effort=True)

    async def send(self, address: Address = CHAT) -> None:
        await self.outbox.send(OutgoingMessage(address, TEXT, "nonce"))

    async def edit_live(self, address: Address = CHAT) -> None:
        await self.live.edit(address, "1", TEXT, interaction=None)


async def seconds_refused(call: Awaitable[object]) -> float:
    with pytest.raises(RateLimited) as refused:
        await call
    return refused.value.retry_after_seconds


async def test_live_edits_reserve_calls_for_the_sender() -> None:
    setup = Setup(FakeSurface(GROUP))
    await setup.send()
    for _ in range(2):
        await setup.edit_live()
    assert await seconds_refused(setup.edit_live()) == 60
    for _ in range(2):
        await setup.send()
    assert [call for call, _ in setup.surface.calls] == ["send", "edit", "edit", "send", "send"]


async def test_kinds_of_calls_in_a_chat_are_counted_separately() -> None:
    setup = Setup(
        FakeSurface(replace(LIMITS, route_call_windows=(CallWindow(3, 5.0, reserved_count=1),)))
    )
    for _ in range(3):
        await setup.send()
    assert await seconds_refused(setup.send()) == 5
    for _ in range(2):
        await setup.edit_live()
    assert await seconds_refused(setup.edit_live()) == 5
    await setup.outbox.edit(CHAT, "1", TEXT, interaction=None)
    await setup.send(replace(CHAT, chat="2"))


@pytest.mark.parametrize("limits", [DISCORD, TELEGRAM_PRIVATE, TELEGRAM_GROUP])
async def test_live_edits_of_a_single_answer_are_not_rate_limited(limits: Limits) -> None:
    setup = Setup(FakeSurface(limits))
    await setup.send()
    for _ in range(12):
        await setup.clock.advance(limits.seconds_between_edits)
        await setup.edit_live()
    before = setup.clock.now()
    final = asyncio.create_task(setup.outbox.edit(CHAT, "1", TEXT, interaction=None))
    await setup.clock.advance(1)
    await final
    assert setup.clock.now() - before <= 1, "the final text waits for its answer's live edits"


@pytest.mark.parametrize("counts_typing", [False, True])
async def test_typing_counts_toward_the_bots_limit_if_the_platform_counts_it(
    counts_typing: bool,
) -> None:
    windows = (CallWindow(3, 5.0, reserved_count=1),)
    limits = replace(LIMITS, bot_call_windows=windows, typing_counts_as_call=counts_typing)
    setup = Setup(FakeSurface(limits))
    for _ in range(2):
        await setup.outbox.typing(CHAT)
    if counts_typing:
        assert await seconds_refused(setup.outbox.typing(CHAT)) == 5
        await setup.send()
        assert await seconds_refused(setup.send()) == 5
    else:
        for _ in range(3):
            await setup.send()


@pytest.mark.parametrize("counts_responses", [False, True])
async def test_responses_wait_for_rate_limits_only_if_the_platform_counts_them(
    counts_responses: bool,
) -> None:
    windows = (CallWindow(2, 5.0),)
    setup = Setup(
        FakeSurface(
            replace(LIMITS, bot_call_windows=windows, responses_count_as_calls=counts_responses)
        )
    )
    for _ in range(2):
        await setup.send()
    response = OutgoingMessage(CHAT, TEXT, "nonce", interaction="token")
    if counts_responses:
        assert await seconds_refused(setup.outbox.send(response)) == 5
    else:
        await setup.outbox.send(response)
        await setup.outbox.edit(CHAT, "1", TEXT, interaction="token")
    assert await seconds_refused(setup.send()) == 5


async def test_responses_to_commands_wait_after_a_refusal() -> None:
    setup = Setup(FakeSurface(replace(LIMITS, responses_count_as_calls=False)))
    setup.surface.fail_next("send", RateLimited(30, "bot"))
    assert await seconds_refused(setup.send()) == 30
    response = OutgoingMessage(CHAT, TEXT, "nonce", interaction="token")
    assert await seconds_refused(setup.outbox.send(response)) == 30
    await setup.clock.advance(30)
    await setup.outbox.send(response)


async def test_approximate_limits_apply_from_the_start_under_strict_pacing() -> None:
    chat, bot = CallWindow(2, 10.0, is_learned=True), CallWindow(3, 1.0, is_learned=True)
    setup = Setup(FakeSurface(replace(LIMITS, chat_call_windows=(chat,), bot_call_windows=(bot,))))
    for _ in range(2):
        await setup.send()
    assert await seconds_refused(setup.send()) == 10
    other = replace(CHAT, chat="2")
    await setup.send(other)
    before = setup.clock.now()
    sent = asyncio.create_task(setup.send(other))
    await setup.clock.advance(2)
    await sent
    assert setup.clock.now() - before >= 1, "the third call of the bot within a second has waited"


async def test_group_gets_under_20_calls_a_minute() -> None:
    """Telegram counts calls when they arrive; the first calls here take almost a second."""
    clock = FakeClock()
    windows = tuple(
        replace(one, reserved_count=0) for one in TELEGRAM_GROUP.chat_call_windows
    )  # as for the outbox
    rates, scope = InProcessRateLimits(clock), RateLimitScope("telegram:-5", windows)
    arrivals: list[float] = []
    while len(arrivals) < 100:
        while (wait := await rates.take_call([scope])) > 0:
            await clock.advance(wait)
        arrivals.append(clock.monotonic() + (0.9 if len(arrivals) < 19 else 0.0))
    arrivals.sort()
    assert max(sum(0 <= other - one < 60 for other in arrivals) for one in arrivals) < 20


async def test_learned_limit_applies_to_sends_only_after_a_refusal() -> None:
    learned = CallWindow(2, 10.0, is_learned=True)
    surface = FakeSurface(replace(LIMITS, chat_call_windows=(learned,)))
    setup = Setup(surface, learns=True)
    for _ in range(20):
        await setup.send()
    assert await seconds_refused(setup.edit_live()) == 10
    setup.surface.fail_next("send", RateLimited(1))
    await seconds_refused(setup.send())
    await setup.clock.advance(7)
    assert await seconds_refused(setup.send()) == 3
    await setup.clock.advance(3600)
    for _ in range(20):
        await setup.send()


@pytest.mark.parametrize(
    ("scope", "blocked"),
    [
        ("route", {"send"}),
        ("chat", {"send", "edit", "typing"}),
        ("bot", {"send", "edit", "typing", "another chat"}),
    ],
)
async def test_refusal_blocks_the_scope_that_the_platform_reports(
    scope: RefusedScope, blocked: set[str]
) -> None:
    setup = Setup(FakeSurface())
    setup.surface.messages["1"] = ""
    setup.surface.fail_next("send", RateLimited(30, scope))
    await seconds_refused(setup.send())

    async def refusals() -> dict[str, float]:
        calls = {
            "send": setup.send(),
            "edit": setup.edit_live(),
            "typing": setup.outbox.typing(CHAT),
            "another chat": setup.send(replace(CHAT, chat="2")),
        }
        found = {}
        for name, call in calls.items():
            try:
                await call
            except RateLimited as error:
                found[name] = error.retry_after_seconds
        return found

    await setup.clock.advance(20)
    assert await refusals() == dict.fromkeys(blocked, 10)
    await setup.clock.advance(10)
    assert await refusals() == {}


async def test_short_wait_is_slept_and_long_wait_raises_rate_limited() -> None:
    clock, surface = FakeClock(), FakeSurface()
    limited = RateLimitedSurface(surface, InProcessRateLimits(clock), clock)
    surface.fail_next("delete", RateLimited(2))
    with pytest.raises(RateLimited):
        await limited.delete(CHAT, "1")
    deleting = asyncio.create_task(limited.delete(CHAT, "1"))
    await clock.advance(1.9)
    assert not deleting.done()
    await clock.advance(0.1)
    await deleting
    surface.fail_next("delete", RateLimited(3))
    for _ in range(2):
        with pytest.raises(RateLimited):
            await limited.delete(CHAT, "1")


async def test_best_effort_call_never_waits() -> None:
    setup = Setup(FakeSurface())
    setup.surface.fail_next("send", RateLimited(1))
    await seconds_refused(setup.send())
    assert await seconds_refused(setup.edit_live()) == 1
    assert [call for call, _ in setup.surface.calls] == ["send"]
