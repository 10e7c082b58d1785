"""Measure the console on a database with 100,000 turns and 20,000 receipts: milliseconds a page.

    python -m tests.bench.console
    python -m tests.bench.console --turns 10000 --receipts 2000 --requests 50

It fills a SQLite database, runs the whole service on it, logs in, and asks for each page one after
the other, as one reader does; then 100 live pages of the operation are opened. One conversation has
500 messages; its answers were given on them.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias

import aiohttp
import msgspec
from sqlalchemy import Connection, insert

from bot.chat.prompt import Message
from bot.chat.receipt import PromptSpan, Receipt
from bot.chat.usage import AnswerCharge
from bot.chat.web_channel import WebMessage, web_person
from bot.runtime.tasks import cancel_and_wait
from bot.settings import Settings
from bot.storage.database import open_database
from bot.storage.tables import conversation, receipt, turn
from tests.contracts.test_receipts import RECEIPT
from tests.platforms.web.channel import write_settings
from tests.support.console import NORA, Playground, opened
from tests.waiting import wait_until

Figures: TypeAlias = tuple[float, float]
"""The median and the worst, in milliseconds."""
_CHANNELS = 200
_LONG_PROMPT = 500
_LIVE_PAGES, _LIVE_SECONDS = 100, 10.0
_ROWS_AT_ONCE = 5_000
_BEGIN = 1_790_000_000.0
_SAID = "The lamp is lit at dusk, and the ferry does not cross before the tide turns. " * 2
LIMITS: Mapping[str, float] = {
    "first page": 300,
    "answers": 300,
    "answers of a channel": 300,
    "inspector, messages": 500,
    "inspector, text": 500,
    "next prompt": 100,
}
"""In milliseconds; the others have none."""


def fill(database: Connection, turns: int, receipts: int, long_channel: str) -> None:
    """Insert conversations, turns and receipts; the newest answers are those with long prompts."""
    keys = [f"discord:{number}" for number in range(_CHANNELS)]
    database.execute(
        insert(conversation),
        [{"key": key, "platform": key.partition(":")[0]} for key in (*keys, long_channel)],
    )
    rows = [_turn(number, keys[number % _CHANNELS]) for number in range(turns - _LONG_PROMPT)]
    rows += [_turn(number, long_channel) for number in range(_LONG_PROMPT)]
    parents: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        key = str(row["conversation"])
        row |= {"id": number, "parent": parents.get(key)}
        parents[key] = number
    short, long = _receipt(20), _receipt(_LONG_PROMPT)
    answers = [_answer(number, keys[number % _CHANNELS], short) for number in range(receipts - 50)]
    answers += [_answer(number, long_channel, long) for number in range(50)]
    for table, values in ((turn, rows), (receipt, answers)):
        for at in range(0, len(values), _ROWS_AT_ONCE):
            database.execute(insert(table), values[at : at + _ROWS_AT_ONCE])


def _turn(number: int, key: str) -> dict[str, object]:
    is_answer = number % 2 == 1
    return {
        "conversation": key,
        "session": 1,
        "role": "assistant" if is_answer else "user",
        "speaker_id": None if is_answer else f"{key.partition(':')[0]}:alice",
        "speaker_name": None if is_answer else "alice",
        "text": _SAID,
        "at": _BEGIN + number,
        "preset": "nora" if is_answer else None,
        "message_id": None if is_answer else f"{key}-{number}",
    }


def _web_message(number: int) -> WebMessage:
    author = web_person("alice") if number % 2 else None
    at = datetime.fromtimestamp(_BEGIN + number, UTC)
    return WebMessage(f"copied-{number}", author, _SAID, at, is_copied=True)


def _receipt(messages: int) -> bytes:
    others = [Message("assistant" if at % 2 else "user", f"{_SAID} {at}") for at in range(messages)]
    prompt = replace(RECEIPT.prompt, messages=(Message("system", "You are Nora."), *others))
    spans = (
        PromptSpan("system", 0),
        PromptSpan("history", 1, messages - 1),
        PromptSpan("newest", messages),
    )
    made: Receipt = replace(RECEIPT, prompt=prompt, layout=spans, answer=_SAID)
    return zlib.compress(msgspec.msgpack.encode(made), 1)


def _answer(number: int, key: str, content: bytes) -> dict[str, object]:
    return {
        "conversation": key,
        "turn": f"{key}:{number}",
        "at": _BEGIN + number,
        "content": content,
        "person": "discord:alice",
        "preset": "nora",
        "provider": "echo",
        "model": "m",
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "output_tokens": 40,
        "cost": AnswerCharge(cost=1200).cost,
    }


async def measure(ask: Callable[[], Awaitable[None]], requests: int) -> Figures:
    """Return the median and the worst of some requests, in milliseconds."""
    await ask()  # templates are compiled once
    took = []
    for _ in range(requests):
        begun = time.perf_counter()
        await ask()
        took.append(1000 * (time.perf_counter() - begun))
    return statistics.median(took), max(took)


async def measure_pages(
    playground: Playground, newest: int, requests: int
) -> Mapping[str, Figures]:
    """Return the figures of each page."""
    channel = playground.path
    pages = {
        "first page": channel,
        "answers": "/answers",
        "answers of a channel": "/answers?channel=discord:7",
        "answers with a text": "/answers?text=ferry",
        "answers without a hit": "/answers?text=nothing+like+it",
        "inspector, messages": f"/answers/{newest}",
        "inspector, text": f"/answers/{newest}?form=text",
        "compare two long prompts": f"/answers/{newest}/compare/{newest - 1}",
        "channels": "/channels",
        "operation": "/operation",
        "usage": "/usage",
    }
    figures: dict[str, Figures] = {}

    async def get(path: str) -> None:
        async with playground.client.get(playground.address + path) as response:
            await response.read()
            assert response.status == 200, path

    async def preview() -> None:
        text = "Nora, when does the ferry cross?"
        status, told = await playground.send(f"{channel}/next", author="web:alice", text=text)
        assert status == 200
        assert told.count("The lamp is lit") >= _LONG_PROMPT - 10

    for name, path in pages.items():
        figures[name] = await measure(partial(get, path), requests)
    figures["next prompt"] = await measure(preview, requests)
    return figures


async def measure_live_pages(playground: Playground, count: int, seconds: float) -> float:
    """Return the CPU that open pages of the operation take, in per cent of a core.

    Both ends are in this process, so that half of it is the readers'.
    """
    opened_pages = 0

    async def read() -> None:
        nonlocal opened_pages
        address = f"{playground.address}/operation/events"
        async with client.get(address) as response:
            await response.content.readline()
            opened_pages += 1
            async for _ in response.content:
                pass

    jar, connector = playground.client.cookie_jar, aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=connector) as client:
        readers = [asyncio.create_task(read()) for _ in range(count)]
        await wait_until(lambda: opened_pages == count)
        begun = time.process_time()
        await asyncio.sleep(seconds)
        used = time.process_time() - begun
        await cancel_and_wait(readers)
    return 100 * used / seconds


async def run(turns: int, receipts: int, requests: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        preset = {**NORA, "max_rounds": _LONG_PROMPT, "max_input_tokens": 100_000}
        settings: Settings = write_settings(Path(folder), [preset])
        async with opened(settings) as playground:
            await playground.open()
            await playground.send(f"{playground.path}/people", name="alice")
            await playground.open(playground.path)
            key = f"web:{playground.path.rpartition('/')[2]}"
            begun = time.perf_counter()
            async with open_database(settings.sqlalchemy_url) as database:
                await database.write(lambda c: fill(c, turns, receipts, key))
                store = playground.service.container.web_channels
                for at in range(0, _LONG_PROMPT, 100):
                    said = [_web_message(number) for number in range(at, at + 100)]
                    await store.add(key.partition(":")[2], said)
            print(f"filled in {time.perf_counter() - begun:.1f} s")  # noqa: T201
            figures = await measure_pages(playground, receipts, requests)
            idle = await measure_live_pages(playground, 0, _LIVE_SECONDS)
            live = await measure_live_pages(playground, _LIVE_PAGES, _LIVE_SECONDS)
    print(f"{_LIVE_PAGES} live pages: {live:.1f} % of a core; without any {idle:.1f} %")  # noqa: T201
    is_fast = True
    for name, (median, worst) in figures.items():
        limit = LIMITS.get(name)
        is_slow = limit is not None and median > limit
        is_fast = is_fast and not is_slow
        wanted = "" if limit is None else f"  (at most {limit:g})"
        print(f"{name:26} {median:7.1f} ms, worst {worst:7.1f}{wanted}{' SLOW' * is_slow}")  # noqa: T201
    return is_fast


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--receipts", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=20)
    given = parser.parse_args()
    return 0 if asyncio.run(run(given.turns, given.receipts, given.requests)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
