"""Pay for the embeddings of a question from the budgets of whoever asks it, or for none."""

import contextlib
from collections.abc import AsyncIterator

from typing_extensions import override

from bot.chat.incoming import Said
from bot.chat.usage import AnswerCharge, SpentAmount
from bot.errors import BudgetUsedUp
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import EmbeddingPayer
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.turn.limits.spending import Spending, server_of

_SPENDS_NOTHING = translatable("Nothing is spent on a preview that only reads.")


@frozen_dataclass
class _MessagePayer(EmbeddingPayer):
    """Knows which message is answered, and by which preset."""

    answering: Preset
    said: Said

    @property
    @override
    def conversation(self) -> str:
        return self.said.address.conversation

    @property
    @override
    def preset(self) -> str:
        return self.answering.name


@frozen_dataclass
class EmbeddingSpending(_MessagePayer):
    """Reserves and settles what a preset's stories cost for one message."""

    spending: Spending

    @property
    @override
    def charge(self) -> AnswerCharge:
        return AnswerCharge(self.said.charged_person, server_of(self.said))

    @contextlib.asynccontextmanager
    @override
    async def paid(self, most: int) -> AsyncIterator[SpentAmount]:
        async with self.spending.reserved_amount(self.answering, self.said, most) as spent:
            yield spent


@frozen_dataclass
class NoEmbeddingSpending(_MessagePayer):
    """Pays for nothing: stories that a service would have to be paid for are left out."""

    @property
    @override
    def charge(self) -> AnswerCharge:
        return AnswerCharge()

    @override
    def paid(self, most: int) -> contextlib.AbstractAsyncContextManager[SpentAmount]:
        raise BudgetUsedUp(_SPENDS_NOTHING)
