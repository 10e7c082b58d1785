"""A model's server as a process that sleeps and streams: thousands of answers cost it little.

    python -m tests.bench.roles.sleeping_model --pieces 10 --seconds-between 0.2

It prints its port. Every answer has the same words, none of them twice; `GET /open` says how many
are being streamed.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import uvloop

END = "the end."
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True)
class AnswerPlan:
    """How an answer is streamed."""

    pieces: int
    seconds_between: float
    """Before each piece, the first one included: on average, from half of it to half more."""


class _Server:
    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
                    found = self._open if head.startswith(b"GET /open") else listed
                    writer.write(_plain_response(found))
                    continue
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(size)
                self._open += 1
                try:
                    await self._stream(writer)
                finally:
                    self._open -= 1
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_STREAM)
        for number in range(self._plan.pieces):
            # Not all at the same moment.
            await asyncio.sleep(self._plan.seconds_between * random.uniform(0.5, 1.5))
            if writer.is_closing():
                return
            is_last = number == self._plan.pieces - 1
            writer.write(_chunk({"content": END if is_last else f"w{number} "}, None))
        writer.write(_chunk({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def _plain_response(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _chunk(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    data = b"data: " + json.dumps({**event, "choices": [choice]}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


class SleepingModel:
    """The process, as its clients see it."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self.base = f"{self._address}/v1"

    async def count_open(self) -> int:
        """Return how many answers are being streamed."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._address}/open") as response,
        ):
            return int(await response.json())


@asynccontextmanager
async def running_sleeping_model(plan: AnswerPlan) -> AsyncIterator[SleepingModel]:
    """Run the server within the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.roles.sleeping_model"),
        *("--pieces", str(plan.pieces), "--seconds-between", str(plan.seconds_between)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield SleepingModel(int(await process.stdout.readline()))
    finally:
        process.kill()
        await process.wait()


async def _run(plan: AnswerPlan) -> None:
    server = await asyncio.start_server(_Server(plan).serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, required=True)
    parser.add_argument("--seconds-between", type=float, required=True)
    given = parser.parse_args()
    uvloop.run(_run(AnswerPlan(given.pieces, given.seconds_between)))


if __name__ == "__main__":
    main()
