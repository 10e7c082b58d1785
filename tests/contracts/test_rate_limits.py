"""Contract of rate limits: all processes share one atomic count."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Face, MessageContent, OutgoingMessage
from bot.chat.prompt import QueuePosition
from bot.chat.rate import CallWindow, Rate, RateLimitScope, WaitingProcess
from bot.delivery.pacing import RateLimitedSurface
from bot.errors import RateLimited
from bot.ports import BucketSurface, Clock, RateLimits
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.runtime.tasks import StopFlag, cancel_and_wait
from bot.storage.redis_rate_limits import open_rate_limits
from bot.turn.limits.slots import ProviderSlots, Urgency
from tests.fakes import LIMITS, FakeClock, FakeSurface
from tests.valkey import frozen_valkey, run_valkey
from tests.waiting import PATIENCE_SECONDS, wait_until, wait_until_async

# One event in a thousand seconds: the time that a test takes does not matter.
SLOW = Rate("person:telegram:5", 3, 3000)
OTHER = Rate("channel:telegram:-7", 100, 100_000)
ANSWER_SECONDS = 5.0  # a busy machine is no frozen server


@dataclass
class Peers:
    """The same limits as seen by two processes."""

    here: RateLimits
    there: RateLimits


@contextlib.asynccontextmanager
async def on_valkey(folder: Path, clock: Clock, *patience: float) -> AsyncIterator[list[Any]]:
    """Start a server; yield its client, and rate limits with each timeout in `patience`."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(run_valkey(folder))
        opened: list[Any] = [await stack.enter_async_context(Redis.from_url(url))]
        for seconds in patience or (ANSWER_SECONDS, ANSWER_SECONDS):
            opening = open_rate_limits(url, "test:", clock, seconds)
            opened.append(await stack.enter_async_context(opening))
        yield opened


@pytest.fixture(params=[pytest.param("valkey", marks=pytest.mark.service), "in_process"])
async def peers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peers]:
    if request.param == "in_process":
        one = InProcessRateLimits(SystemClock())
        yield Peers(one, one)
        return
    async with on_valkey(tmp_path, SystemClock()) as (_, here, there):
        yield Peers(here, there)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=PATIENCE_SECONDS)


async def test_one_chat_leaves_slots_to_other_chats_across_all_processes(peers: Peers) -> None:
    here, there = (
        ProviderSlots(rates, SystemClock(), {"p": 4}, 600) for rates in (peers.here, peers.there)
    )
    async with contextlib.AsyncExitStack() as held, asyncio.TaskGroup() as group:
        for slots in (here, there, here):
            await held.enter_async_context(slots.hold("p", StopFlag(), _ignore, chat="noisy"))
        fourth = group.create_task(_hold_once(there, "noisy"))
        await wait_until(lambda: there.waiting_count("p") == 1)
        await _hold_once(here, "quiet")
        assert not fourth.done(), "the last slot is for other chats"
        await held.aclose()


async def test_queue_position_counts_requests_of_all_processes(peers: Peers) -> None:
    here, there = (
        ProviderSlots(rates, SystemClock(), {"p": 1}, 600) for rates in (peers.here, peers.there)
    )
    shown: list[QueuePosition] = []
    async with here.hold("p", StopFlag(), _ignore):
        waiting = [asyncio.create_task(_hold_once(slots, "a", shown)) for slots in (here, there)]
        await wait_until(lambda: len(shown) == 1)
        waiting.append(asyncio.create_task(_hold_once(there, "b", shown)))
        await wait_until(lambda: len(shown) == 2)
        await cancel_and_wait(waiting[:2])
        waiting.append(asyncio.create_task(_hold_once(here, "c", shown)))
        await wait_until(lambda: len(shown) == 3)
        await cancel_and_wait(waiting)
    assert [one.position for one in shown] == [2, 3, 2]


async def _hold_once(
    slots: ProviderSlots, chat: str, shown: list[QueuePosition] | None = None
) -> None:
    show = _ignore if shown is None else shown.append
    async with slots.hold("p", StopFlag(), show, chat=chat):
        pass


def _ignore(_position: object) -> None:
    return


async def test_waiting_events_are_spaced_evenly(peers: Peers) -> None:
    assert [await peers.here.take([SLOW]) for _ in range(3)] == [0, 0, 0]
    assert await peers.there.take([SLOW]) == about(1000)
    waits = [await peers.here.take([SLOW], 5000) for _ in range(5)]
    assert waits == [about(1000 * n) for n in range(1, 6)], "what was refused was not counted"
    assert await peers.there.take([SLOW], 5000) == about(6000)  # too far away: not counted
    assert await peers.there.take([SLOW], 7000) == about(6000)


async def test_event_is_counted_against_all_rates_or_none(peers: Peers) -> None:
    tight = Rate("channel:telegram:-8", 4, 4000)
    for _ in range(3):
        assert await peers.here.take([SLOW, tight]) == 0
    assert await peers.here.take([SLOW, tight]) > 0  # refused by SLOW
    assert await peers.here.take([Rate("person:telegram:6", 3, 3000)]) == 0
    assert await peers.there.take([tight]) == 0  # its fourth
    assert await peers.there.take([tight]) > 0


async def test_concurrent_events_never_exceed_the_rate(peers: Peers) -> None:
    async with asyncio.TaskGroup() as group:
        takes = [
            group.create_task(end.take([OTHER]))
            for _ in range(150)
            for end in (peers.here, peers.there)
        ]
    assert sum(one.result() == 0 for one in takes) == OTHER.count


async def test_cancelled_call_does_not_mix_up_the_results_of_later_calls(peers: Peers) -> None:
    """If a caller is cancelled during a request, no later caller gets its result."""
    rates = [Rate(f"key:{number}", 1, 1000 * max(number, 1)) for number in range(10)]
    for rate in rates[1:]:
        await peers.here.take([rate])
    found: list[tuple[int, int]] = []

    async def take(number: int) -> None:
        found.append((number, round(await peers.there.take([rates[number]]) / 1000)))

    for round_ in range(200):
        callers = [asyncio.create_task(take(number)) for number in range(1, 10)]
        for _ in range(round_ % 4):
            await asyncio.sleep(0)
        for caller in callers[::2]:
            caller.cancel()
        await asyncio.wait(callers)
    assert {number for number, _ in found} >= {2, 4, 6, 8}
    assert [one for one in found if one[0] != one[1]] == []


async def test_slots_are_held_until_released(peers: Peers) -> None:
    assert await peers.here.acquire_slot("p", 2, "a", 600) == 1
    assert await peers.there.acquire_slot("p", 2, "b", 600) == 2
    assert await peers.there.acquire_slot("p", 2, "b", 600) == 2  # again
    assert await peers.here.acquire_slot("p", 2, "c", 600) == 0
    assert await peers.here.acquire_slot("q", 2, "c", 600) == 1
    await peers.there.release_slot("p", "a")
    await peers.there.release_slot("p", "nobody")
    assert await peers.here.acquire_slot("p", 2, "c", 600) == 2
    assert await peers.here.acquire_slot("p", 2, "d", 600) == 0


async def test_free_slot_goes_to_the_most_urgent_longest_waiting_process(peers: Peers) -> None:
    here, there = peers.here, peers.there
    waiters = {
        "a": (here, WaitingProcess("here", Urgency.QUESTION, 600)),
        "b": (there, WaitingProcess("there", Urgency.UNADDRESSED, 600)),
        "c": (here, WaitingProcess("here", Urgency.UNADDRESSED, 600)),
        "d": (there, WaitingProcess("third", Urgency.QUESTION, 600)),
    }

    async def ask(names: str) -> str:
        """Try to get the slot in this order; return who got it."""
        given = []
        for name in names:
            end, waiter = waiters[name]
            if await end.acquire_slot("p", 1, name, 600, waiter):
                given.append(name)
        return "".join(given)

    assert await ask("abcd") == "a"
    for asking, holder, following in (("cbd", "a", "d"), ("cb", "d", "b"), ("c", "b", "c")):
        await waiters[holder][0].release_slot("p", holder)
        assert await ask(asking) == following


async def test_each_free_slot_goes_to_one_waiting_process(peers: Peers) -> None:
    for name in "ab":
        assert await peers.here.acquire_slot("p", 2, name, 600)
    for name in ("first", "second", "third"):
        assert not await peers.there.acquire_slot("p", 2, name, 600, WaitingProcess(name, 0, 600))
    for name in "ab":
        await peers.here.release_slot("p", name)
    assert not await peers.here.acquire_slot("p", 2, "third", 600, WaitingProcess("third", 0, 600))
    assert await peers.here.acquire_slot("p", 2, "second", 600, WaitingProcess("second", 0, 600))
    assert await peers.here.acquire_slot("p", 2, "first", 600, WaitingProcess("first", 0, 600)) == 2


async def test_waiting_process_that_stopped_trying_is_skipped(peers: Peers) -> None:
    assert await peers.here.acquire_slot("p", 1, "a", 600)
    assert not await peers.here.acquire_slot(
        "p", 1, "b", 600, WaitingProcess("here", Urgency.QUESTION, 0.05)
    )
    await peers.here.release_slot("p", "a")
    waiter = WaitingProcess("there", Urgency.BACKGROUND, 600)
    await wait_until_async(lambda: peers.there.acquire_slot("p", 1, "c", 600, waiter))


async def test_slot_of_a_dead_process_becomes_free(peers: Peers) -> None:
    assert await peers.here.acquire_slot("p", 1, "dead", 0.05)
    await wait_until_async(lambda: peers.there.acquire_slot("p", 1, "alive", 600))


GROUP = RateLimitScope("telegram:-7", (CallWindow(5, 1000),))
NORA = Face("Nora")
LIMIT_OF_FIVE = replace(LIMITS, route_call_windows=(CallWindow(5, 1000),))


class WebhookSurface(FakeSurface, BucketSurface):
    """A surface where all characters share a webhook, and the bot has a bucket per chat."""

    @override
    async def select_send_bucket(self, message: OutgoingMessage) -> str:
        is_spoken = message.content.face is not None
        return "discord:webhook=1" if is_spoken else message.address.lane

    @override
    async def select_edit_bucket(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> str:
        return await self.select_send_bucket(OutgoingMessage(address, content, ""))


def said_in(chat: str, face: Face | None) -> OutgoingMessage:
    return OutgoingMessage(Address("discord", chat), MessageContent("yes", face), "")


async def test_window_limits_the_calls_of_all_processes(peers: Peers) -> None:
    taken = [await end.take_call([GROUP]) for end in (peers.here, peers.there) * 3]
    assert taken == [*[0] * 5, about(1000)]
    assert await peers.there.take_call([RateLimitScope("telegram:-8", GROUP.call_windows)]) == 0


async def test_window_admits_a_call_after_its_oldest_call_expires(peers: Peers) -> None:
    short = RateLimitScope("telegram:-7", (CallWindow(2, 0.2),))
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(6):
            while (wait := await peers.here.take_call([short])) > 0:
                assert wait <= 0.2
                await asyncio.sleep(wait)


async def test_best_effort_calls_do_not_use_reserved_calls(peers: Peers) -> None:
    live = RateLimitScope(GROUP.key, (CallWindow(5, 1000, reserved_count=2),))
    assert [await peers.here.take_call([live]) for _ in range(3)] == [0, 0, 0]
    assert await peers.here.take_call([live]) == about(1000)
    assert [await peers.there.take_call([GROUP]) for _ in range(2)] == [0, 0]
    assert await peers.there.take_call([GROUP]) == about(1000)


async def test_call_is_counted_in_all_scopes_or_none(peers: Peers) -> None:
    bot = RateLimitScope("telegram", (CallWindow(6, 1000),))
    for _ in range(5):
        assert await peers.here.take_call([GROUP, bot]) == 0
    assert await peers.here.take_call([GROUP, bot]) > 0  # refused by the group
    assert await peers.there.seconds_until_call([bot]) == 0  # which counts nothing
    assert await peers.there.take_call([bot]) == 0  # its sixth
    assert await peers.here.seconds_until_call([bot]) == about(1000)
    assert await peers.there.take_call([bot]) == about(1000)


async def test_refused_scope_allows_no_calls_until_the_wait_is_over(peers: Peers) -> None:
    await peers.there.block_calls("telegram:-7", 500)
    await peers.there.block_calls("telegram:-7", 2)  # which shortens nothing
    assert await peers.here.take_call([RateLimitScope("telegram"), GROUP]) == about(500)
    assert await peers.here.take_call([RateLimitScope("telegram")]) == 0
    await peers.here.block_calls("telegram", 0.05)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await peers.there.take_call([RateLimitScope("telegram")]) > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_refusals_are_listed_longest_wait_first(peers: Peers) -> None:
    assert await peers.here.blocked_calls() == []
    await peers.there.block_calls("telegram:-7 send", 500)
    await peers.here.block_calls("discord:*[x]", 900)
    found = await peers.here.blocked_calls()
    assert [one.scope for one in found] == ["discord:*[x]", "telegram:-7 send"]
    assert [one.seconds_left for one in found] == [about(900), about(500)]


async def test_learned_window_applies_after_a_refusal(peers: Peers) -> None:
    learned = RateLimitScope("telegram", (CallWindow(3, 1000, is_learned=True),))
    assert [await peers.here.take_call([learned]) for _ in range(8)] == [0] * 8
    await peers.there.block_calls("telegram", 0)
    assert await peers.here.take_call([learned]) == about(1000)


async def test_bucket_shared_by_several_chats_is_counted_across_processes(peers: Peers) -> None:
    """Two threads, each served by another process, share the webhook of their channel."""
    surface, clock = WebhookSurface(LIMIT_OF_FIVE), SystemClock()
    here, there = (RateLimitedSurface(surface, rates, clock) for rates in (peers.here, peers.there))
    for number in range(4):
        end, thread = ((here, "7"), (there, "8"))[number % 2]
        await end.send(said_in(thread, NORA))
    await there.edit(
        Address("discord", "8"), "1", MessageContent("no", NORA), interaction=None
    )  # counts apart
    await here.send(said_in("7", NORA))
    with pytest.raises(RateLimited) as refused:
        await there.send(said_in("8", NORA))
    assert refused.value.retry_after_seconds == about(1000)
    await there.send(said_in("8", None))  # the bot itself
    assert [one.scope for one in await peers.here.blocked_calls()] == []


async def test_refusal_of_a_shared_bucket_applies_to_every_chat_in_it(peers: Peers) -> None:
    surface, clock = WebhookSurface(LIMIT_OF_FIVE), SystemClock()
    here, there = (RateLimitedSurface(surface, rates, clock) for rates in (peers.here, peers.there))
    surface.fail_next("send", RateLimited(500, "route"))
    for end, thread in ((here, "7"), (there, "8")):
        with pytest.raises(RateLimited) as refused:
            await end.send(said_in(thread, NORA))
        assert refused.value.retry_after_seconds == about(500)
    assert [one.scope for one in await peers.there.blocked_calls()] == ["discord:webhook=1 send"]


@pytest.mark.service
async def test_each_process_limits_itself_while_the_server_is_frozen(tmp_path: Path) -> None:
    clock = FakeClock()
    async with on_valkey(tmp_path, clock, ANSWER_SECONDS) as (client, limits):
        assert await limits.take([SLOW]) == 0
        for _ in range(5):
            assert await limits.take_call([GROUP]) == 0
            await clock.advance(1)
        with frozen_valkey():
            assert [await limits.take([SLOW]) for _ in range(4)] == [0, 0, 0, 1000]
            assert await limits.acquire_slot("p", 1, "a", 600)
            assert not await limits.acquire_slot("p", 1, "b", 600)
            await limits.release_slot("p", "a")
            assert await limits.acquire_slot("p", 1, "b", 600)
            assert await limits.take_call([GROUP]) == 995  # what the server counted is known here
            await limits.block_calls("telegram:-8", 600)
        await clock.advance(20)
        assert await limits.take([SLOW]) == 0  # asked again: its second there
        assert await client.pttl("test:refused:telegram:-8") == pytest.approx(580_000, abs=5000)


@pytest.mark.service
async def test_slot_released_during_a_freeze_is_free_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with on_valkey(tmp_path, clock) as (_, here, there):
        for holder in ("a", "b"):
            assert await here.acquire_slot("p", 2, holder, 600)
        with frozen_valkey():
            await here.take([SLOW])  # it finds out
            for holder in ("a", "b"):
                await here.release_slot("p", holder)
        assert not await there.acquire_slot("p", 2, "c", 600)
        await clock.advance(20)
        await here.take([SLOW])
        assert [await there.acquire_slot("p", 2, holder, 600) for holder in "cd"] == [1, 2]


@pytest.mark.service
async def test_paused_process_does_not_consider_the_server_frozen(tmp_path: Path) -> None:
    async with on_valkey(tmp_path, SystemClock(), 1.0, ANSWER_SECONDS) as (_, here, there):
        await here.take([SLOW])  # it is connected
        asking = asyncio.create_task(here.take([SLOW]))
        await asyncio.sleep(0)
        time.sleep(2)  # noqa: ASYNC251 # as a busy machine lets it
        await asking
        while await there.take([SLOW]) == 0:
            """Use up the remaining calls."""
        assert await here.take([SLOW]) == about(1000), "it goes on counting with the others"


@pytest.mark.service
async def test_processes_divide_the_calls_of_a_bot_while_the_server_is_frozen(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    bot = RateLimitScope("telegram", (CallWindow(10, 1000),), is_cross_process=True)
    chat = RateLimitScope("telegram:-9", (CallWindow(4, 1000),))
    async with on_valkey(tmp_path, clock) as (_, here, there):
        both = (here, there)
        for limits in both:
            await limits.acquire_slot("other", 9, "a", 600)
        await clock.advance(30)
        for limits in both:
            await limits.acquire_slot("other", 9, "a", 600)  # it counts the processes again
        for name, limits in zip(("here", "there"), both, strict=True):
            assert await limits.acquire_slot("held", 4, name, 600)
        with frozen_valkey():
            for limits in both:
                assert [await limits.take_call([bot]) for _ in range(6)] == [*[0] * 5, 1000]
                assert [await limits.take_call([chat]) for _ in range(5)] == [*[0] * 4, 1000]
                taken = [await limits.acquire_slot("p", 4, name, 600) for name in "abc"]
                assert taken == [1, 2, 0]
                taken = [await limits.acquire_slot("held", 4, name, 600) for name in "ab"]
                assert taken == [2, 0], "what it holds in the server counts"


@pytest.mark.service
async def test_all_keys_on_the_server_expire(tmp_path: Path) -> None:
    async with on_valkey(tmp_path, SystemClock(), ANSWER_SECONDS) as (client, limits):
        await limits.take([SLOW])
        await limits.acquire_slot("p", 1, "a", 600)
        await limits.take_call([GROUP])
        await limits.block_calls("telegram", 600)
        keys = sorted(await client.keys("*"))
        assert keys == [
            b"test:calls:1000:telegram:-7",
            b"test:learned:telegram",
            b"test:limiting",
            b"test:places:p",
            b"test:rate:person:telegram:5",
            b"test:refused:telegram",
        ]
        assert [0 < await client.ttl(key) <= 3600 for key in keys] == [True] * 6
