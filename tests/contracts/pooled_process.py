"""A process that answers messages through a transaction pooler, beside many others.

`python -m tests.contracts.pooled_process NUMBER MESSAGES URL`; prints how many were answered.
"""

import asyncio
import sys

from bot.storage.database import open_database
from tests.support.store import answer_in

_AT_ONCE = 8


async def run(number: int, messages: int, url: str) -> None:
    """Answer so many messages in chats of this process, eight at once."""
    chats = iter(range(number * messages, (number + 1) * messages))
    answered = 0
    async with open_database(url) as database:

        async def work() -> None:
            nonlocal answered
            for chat in chats:
                await answer_in(database, chat)
                answered += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
    sys.stdout.write(f"{answered}\n")


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
