"""Budgets in SQL."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from bot.chat.usage import BudgetCap
from bot.ports import Budgets
from bot.storage.sql.database import Database
from bot.storage.units import budgets as units


class SqlBudgets(Budgets):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def reserve(self, caps: Sequence[BudgetCap], amount: int) -> BudgetCap | None:
        return await self._database.run(lambda: units.reserve(caps, amount))

    @override
    async def settle(self, caps: Sequence[BudgetCap], reserved: int, spent: int) -> None:
        if spent != reserved:
            await self._database.run(lambda: units.settle(caps, spent - reserved))

    @override
    async def spent(self, caps: Sequence[BudgetCap]) -> Mapping[str, int]:
        return await self._database.run(lambda: units.read_spent(caps))
