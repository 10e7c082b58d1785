"""Usage of requests without a receipt: rows of the same table, without content or turn."""

from sqlalchemy import insert
from typing_extensions import override

from bot.chat.prompt import Usage
from bot.chat.usage import AnswerCharge
from bot.ports import Clock, UsageLog
from bot.storage.sql.database import Database
from bot.storage.sql.tables import receipt


class SqlUsageLog(UsageLog):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def record(
        self, conversation: str, preset: str, provider: str, charge: AnswerCharge, usage: Usage
    ) -> None:
        row = {
            "conversation": conversation,
            "turn": "",
            "at": self._clock.now(),
            "content": b"",
            "person": charge.person,
            "server": charge.server,
            "preset": preset,
            "provider": provider,
            "model": charge.model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "cost": charge.cost,
        }
        await self._database.write(lambda c: c.execute(insert(receipt), row))
