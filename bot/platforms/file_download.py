"""Download a file over HTTP, with limits on size and time, without following redirects."""

import asyncio
from http import HTTPStatus

from bot.runtime.http_client import ConnectionFailed, HttpClient

_CONNECT_SECONDS = 5.0
_HEADERS = {"Connection": "close"}


async def download_file(url: str, max_bytes: int, seconds: float) -> bytes:
    """Return a file, or its first `max_bytes`; raises `ConnectionFailed` or `TimeoutError`."""
    client = HttpClient(url, _HEADERS, connect_seconds=_CONNECT_SECONDS, uses_proxy=False)
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        async with await client.request("GET", "", None, deadline) as response:
            if response.status != HTTPStatus.OK:
                raise ConnectionFailed(f"the server answered {response.status}", sent=True)
            return await response.read_all(deadline, max_bytes)
    finally:
        await client.close()
