"""An HTTP server that sends exactly the bytes that a test specifies."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

Step: TypeAlias = bytes | float | None
"""Bytes to send, seconds to wait, or None: reset the connection."""


@dataclass
class ByteServer:
    """Answers each request with the next script of steps; the connection stays open afterward."""

    scripts: list[Sequence[Step]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    """The received heads and bodies."""
    connections: int = 0
    port: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await read_request(reader))
                await play(self.scripts.pop(0), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.hung_up.set()
        finally:
            writer.close()


async def play(steps: Sequence[Step], writer: asyncio.StreamWriter) -> None:
    for step in steps:
        if step is None:
            writer.transport.abort()
        elif isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        else:
            await asyncio.sleep(step)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    return head + await reader.readexactly(int(fields.get(b"Content-Length", 0)))


@asynccontextmanager
async def byte_server(*scripts: Sequence[Step]) -> AsyncIterator[ByteServer]:
    served = ByteServer(list(scripts))
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
        served.port = server.sockets[0].getsockname()[1]
        yield served
