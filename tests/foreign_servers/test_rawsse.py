"""The byte-exact odd streams of rigs/openai/rawsse.py: each is whole, or an error, never half."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Delta, FinishReason
from bot.errors import BackendError, BackendInterrupted, BackendUnavailable
from tests.backends.asking import ask, prompt
from tests.backends.conftest import FakeClock
from tests.shared_data import shared_folder
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")
WELL = "Hello from rawsse"  # what comes where no stream is queued, as at a repetition

# It runs at a port that is free.
CHILD = """
import asyncio, runpy, sys
async def serve(handle):
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(serve(runpy.run_path(sys.argv[1])["handle"]))
"""


@dataclass(frozen=True)
class Expected:
    """What becomes of a stream."""

    text: str
    reason: FinishReason | None = FinishReason.STOP
    error: type[BackendError] | None = None
    reasoning: str = ""
    requests: int = 1
    seconds: float = 10
    """How long the provider may be silent."""


EXPECTED = {
    "inband_error": Expected("partial", None, BackendInterrupted),
    "no_done": Expected("complete"),
    "comments_keepalive": Expected("ab"),
    "empty_event": Expected("ab"),
    "split_utf8": Expected("héllo 🎉 日本"),
    "crlf": Expected("ab"),
    "empty_choices": Expected("ok"),
    "null_deltas": Expected("ok"),
    "reasoning": Expected("answer", reasoning="think more"),
    "html_200": Expected(WELL, requests=2),
    "json_not_sse": Expected("plain"),
    "dup_finish": Expected("a"),
    "huge": Expected("word " * 10_000),
    "usage_only_last": Expected("ab"),
    "content_filter": Expected("bad", FinishReason.FILTERED),
    "length": Expected("cut off", FinishReason.LENGTH),
    "late_role": Expected("ab"),
    "rst_midline": Expected("abc", None, BackendInterrupted),
    "never_answers": Expected("", None, BackendUnavailable, seconds=0.2),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    rig = shared_folder() / "rigs" / "openai" / "rawsse.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, str(rig)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    process.kill()
    await process.wait()


async def call(server: str, path: str, body: object = None) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server}/_raw/{path}", json=body) as response,
    ):
        return json.loads(await response.read())


@pytest.mark.parametrize("name", EXPECTED)
async def test_odd_stream_is_whole_or_an_error(server: str, name: str) -> None:
    expected = EXPECTED[name]
    await call(server, "reset")
    await call(server, "preset", {"name": name})
    seconds = expected.seconds
    settings = OpenAISettings(
        base_url=f"{server}/v1", first_token_seconds=seconds, idle_seconds=seconds
    )
    backend = OpenAICompatibleBackend(settings, "rawsse", clock=FakeClock())
    answer = await ask(backend, prompt())
    assert answer.text == expected.text
    assert "".join(answer.reasoning) == expected.reasoning
    assert (answer.finish.reason if answer.finish else None) is expected.reason
    assert type(answer.error) is (expected.error or type(None))
    assert len(await call(server, "log")) == expected.requests
    await backend.close()


async def test_answer_that_nobody_wants_any_more_ends_the_request(server: str) -> None:
    await call(server, "reset")
    await call(server, "preset", {"name": "slow_tokens"})
    backend = OpenAICompatibleBackend(OpenAISettings(base_url=f"{server}/v1"), "rawsse")
    async with aclosing(backend.generate(prompt())) as events:
        assert await anext(events) == Delta("t0 ")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await call(server, "log"))[0]["aborted"]:  # noqa: ASYNC110 # another process
            await asyncio.sleep(0.05)
    await backend.close()
