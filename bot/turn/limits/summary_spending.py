"""Pay for summaries from the budgets of those whose conversation is summarized.

They take slots of a provider as answers do, after everybody who waits for one.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from typing_extensions import override

from bot.chat.incoming import Said
from bot.chat.prompt import Prompt
from bot.ports import UsageLog
from bot.prompting.presets.preset import Preset
from bot.replying.stop_flag import StopFlag
from bot.summaries import SummaryRequest, SummarySpending
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.slot_queue import Urgency
from bot.turn.limits.spending import Spending, counted


class BudgetedSummaries(SummarySpending):
    """Reserves and settles the cost of summaries, and logs their usage beside that of answers."""

    def __init__(
        self, spending: Spending, log: UsageLog, slots: ProviderSlots | None = None
    ) -> None:
        self._spending = spending
        self._log = log
        self._slots = slots

    @contextlib.asynccontextmanager
    @override
    async def paid(
        self, preset: Preset, said: Said, prompt: Prompt, prompt_tokens: int
    ) -> AsyncIterator[SummaryRequest]:
        async with self._spending.reserved(preset, said, prompt, prompt_tokens) as reservation:
            request = SummaryRequest(reservation.prompt)
            async with self._slot(preset.provider):
                yield request
            usage = counted(request.usage, prompt_tokens, request.text)
            charge = self._spending.charged(reservation, preset, [usage])
        conversation = said.address.conversation
        await self._log.record(conversation, preset.name, preset.provider, charge, usage)

    def _slot(self, provider: str) -> AbstractAsyncContextManager[None]:
        if self._slots is None:
            return contextlib.nullcontext()
        return self._slots.hold(provider, StopFlag(), _ignore, urgency=Urgency.BACKGROUND)


def _ignore(_position: object) -> None:
    """Show nothing: nobody waits for a summary."""
