"""A proxy in front of a server that a test can close or freeze while clients are connected."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeAlias

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """Forwards data between a loopback port and the connections that `connect` opens."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def freeze(self) -> None:
        """Accept connections, but forward nothing."""
        self._flows.clear()

    async def shut(self) -> None:
        """End all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.close()
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            upstream, forward = await self._connect()
            self._writers |= {writer, forward}
            await asyncio.wait(
                [
                    asyncio.create_task(self._copy(reader, forward)),
                    asyncio.create_task(self._copy(upstream, writer)),
                ]
            )

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
        writer.close()
        self._writers.discard(writer)
