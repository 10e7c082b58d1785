"""A worker whose model has a price."""

from collections.abc import Mapping
from typing import Any

from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Finish, FinishReason, Usage
from bot.chat.usage import BudgetKind, Period
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.usage import Budgets
from bot.turn.limits.rate_limits import NoticeLimiter
from bot.turn.limits.spending import BudgetRules, Spending
from tests.fakes import FakeBackend, FakeClock
from tests.turn.setup import Setup

PROVIDERS = {
    # a million tokens of the prompt cost one dollar, of the answer ten
    "p": OpenAISettings.model_validate(
        {"base_url": "http://127.0.0.1:1", "prices": {"m": {"input": 1, "output": 10}}}
    ),
    "q": OpenAISettings.model_validate({"base_url": "http://127.0.0.1:1"}),
}


DONE = Finish(FinishReason.STOP, Usage(1000, 0, 100))  # costs 2,000 millionths


PERSON_A_DAY = (BudgetKind.PERSON, Period.DAY)


def make_setup(
    database: Database,
    *scripts: list[Any],
    backend: FakeBackend | None = None,
    budgets: Mapping[tuple[BudgetKind, Period], int] | None = None,
    cheaper: Preset | None = None,
    **options: Any,
) -> Setup:
    clock = FakeClock()
    spending = Spending(
        PROVIDERS,
        clock,
        Budgets(database),
        NoticeLimiter(InProcessRateLimits(clock)),
        BudgetRules(budgets or {}, cheaper, max_output_tokens=400),
    )
    backend = backend or FakeBackend(*scripts)
    return Setup(database, backend=backend, clock=clock, spending=spending, **options)
