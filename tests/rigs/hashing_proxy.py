"""A small HTTP proxy that forwards requests with equal header values to the same server."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.waiting import wait_until

_TEXT = re.compile(rb'"content":\s*"[^"]')
_HOP = {"host", "content-length", "transfer-encoding", "connection"}


class HashingProxy:
    """Counts the requests by header value and server."""

    def __init__(self, servers: Sequence[str], header: str) -> None:
        self.servers = servers
        self.header = header
        self.base = ""
        self.sent: dict[str, Counter[str]] = defaultdict(Counter)
        self.bodies: list[bytes] = []
        self.without_header = 0
        self.broken_off = 0
        """Streams whose reader was gone before their end."""
        self.holds_streams = False
        """Send nothing after the first text of a stream until its reader is gone."""

    def choose(self, value: str) -> str:
        digest = hashlib.sha256(value.encode()).digest()
        return self.servers[int.from_bytes(digest[:8]) % len(self.servers)]

    async def forward(self, request: web.Request) -> web.StreamResponse:
        value = request.headers.get(self.header)
        if value is None:
            self.without_header += request.method == "POST"
        server = self.choose(value or "")
        body = await request.read()
        if value is not None:
            self.sent[value][server] += 1
            self.bodies.append(body)
        headers = {key: each for key, each in request.headers.items() if key.lower() not in _HOP}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, server + request.path_qs, data=body, headers=headers
            ) as answer,
        ):
            kept = {key: each for key, each in answer.headers.items() if key.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            try:
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                    if self.holds_streams and _TEXT.search(piece):
                        await wait_until(lambda: request.transport is None)
                        raise ConnectionResetError
            except ConnectionError:
                self.broken_off += 1
                raise
            await response.write_eof()
        return response


@asynccontextmanager
async def running_proxy(servers: Sequence[str], header: str) -> AsyncIterator[HashingProxy]:
    """Serve on a free port of loopback."""
    proxy = HashingProxy(servers, header)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", proxy.forward)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.base = f"http://{host}:{port}"
        yield proxy
    finally:
        await runner.cleanup()
