"""What an answer to several people costs is shared by them in equal parts."""

from bot.chat.usage import BudgetCap, BudgetKind, Period
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.usage import Budgets
from bot.turn.limits.rate_limits import AnswerLimits
from bot.turn.limits.spending import BudgetRules, Spending
from tests.fakes import FakeClock
from tests.samples import ALICE, BOB
from tests.turn.budgets import DONE, PROVIDERS
from tests.turn.busy_channel import LIMITS_OF_CHATS, asked, end
from tests.turn.setup import Setup, running_worker

LIMITS = {(BudgetKind.PERSON, Period.DAY): 6_000, (BudgetKind.CHANNEL, Period.DAY): 50_000}


class Burst:
    """A group in which Alice and Bob ask at the same time, and get one answer."""

    def __init__(self, database: Database) -> None:
        clock = FakeClock()
        self._budgets = Budgets(database)
        self._spending = Spending(
            PROVIDERS,
            clock,
            self._budgets,
            InProcessRateLimits(clock),
            BudgetRules(LIMITS, max_output_tokens=400),
        )
        self.setup = Setup(
            database,
            ["Both of you.", DONE],
            limits=LIMITS_OF_CHATS,
            clock=clock,
            preset={"context": "all"},
            pipeline_parts={"spending": self._spending},
        )
        preset = self.setup.resolver.default
        self._caps: dict[str, BudgetCap] = {}
        for author in (ALICE, BOB):
            for cap in self._spending.caps(asked(1, author), preset):
                self._caps[cap.owner] = cap

    async def use_up(self, owner: str) -> None:
        """Leave nothing of a budget."""
        cap = self._caps[owner]
        assert await self._budgets.reserve([cap], cap.limit) is None

    async def ask(self) -> None:
        await self.setup.receive(asked(1, ALICE), asked(2, BOB))
        async with running_worker(self.setup) as worker:
            await end(self.setup, worker)

    async def spent(self) -> dict[str, int]:
        spent = await self._budgets.spent(list(self._caps.values()))
        return {owner: spent.get(cap.key, 0) for owner, cap in self._caps.items()}


async def test_cost_is_shared_in_equal_parts_by_who_asked(database: Database) -> None:
    burst = Burst(database)
    await burst.ask()
    assert burst.setup.texts == ["Both of you."]
    assert await burst.spent() == {ALICE.id: 1_000, BOB.id: 1_000, "telegram:5": 2_000}


async def test_who_has_nothing_left_refuses_nobody_an_answer(database: Database) -> None:
    """Bob writes last: before, everything was charged to him, and refused to Alice as well."""
    burst = Burst(database)
    await burst.use_up(BOB.id)
    await burst.ask()
    assert burst.setup.texts == ["Both of you."]
    assert await burst.spent() == {ALICE.id: 2_000, BOB.id: 6_000, "telegram:5": 2_000}


async def test_nothing_stays_reserved_where_nobody_can_pay(database: Database) -> None:
    burst = Burst(database)
    await burst.use_up(ALICE.id)
    await burst.use_up(BOB.id)
    await burst.ask()
    [told] = burst.setup.texts
    assert "Your budget of $0.0060 is used up today" in told
    assert await burst.spent() == {ALICE.id: 6_000, BOB.id: 6_000, "telegram:5": 0}


async def test_who_asks_too_much_delays_nobody_elses_answer(database: Database) -> None:
    """Bob writes last: before, both were refused an answer."""
    clock = FakeClock()
    rates = InProcessRateLimits(clock)
    limits = AnswerLimits(rates, clock, per_person=1, per_channel=0, seconds=3600)
    setup = Setup(
        database,
        ["For Bob."],
        ["Both of you."],
        limits=LIMITS_OF_CHATS,
        clock=clock,
        preset={"context": "all"},
        pipeline_parts={"limits": limits},
    )
    await setup.say(asked(1, BOB))
    await setup.receive(asked(2, ALICE), asked(3, BOB))
    async with running_worker(setup) as worker:
        await end(setup, worker)
    assert setup.texts == ["For Bob.", "Both of you."]
