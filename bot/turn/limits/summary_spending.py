"""Pay for summaries from the budgets of those whose conversation is summarized."""

import contextlib
from collections.abc import AsyncIterator

from typing_extensions import override

from bot.chat.incoming import Said
from bot.chat.prompt import Prompt
from bot.ports import UsageLog
from bot.prompting.presets.preset import Preset
from bot.summaries.summarizer import SummaryRequest, SummarySpending
from bot.turn.limits.spending import Spending, counted


class BudgetedSummaries(SummarySpending):
    """Reserves and settles the cost of summaries, and logs their usage beside that of answers."""

    def __init__(self, spending: Spending, log: UsageLog) -> None:
        self._spending = spending
        self._log = log

    @contextlib.asynccontextmanager
    @override
    async def paid(
        self, preset: Preset, said: Said, prompt: Prompt, prompt_tokens: int
    ) -> AsyncIterator[SummaryRequest]:
        async with self._spending.reserved(preset, said, prompt, prompt_tokens) as reservation:
            request = SummaryRequest(reservation.prompt)
            yield request
            usage = counted(request.usage, prompt_tokens, request.text)
            charge = self._spending.charged(reservation, preset, [usage])
        conversation = said.address.conversation
        await self._log.record(conversation, preset.name, preset.provider, charge, usage)
