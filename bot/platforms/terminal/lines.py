"""Read lines from a terminal, a pipe or a file without blocking the event loop."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator

_LONGEST_LINE_BYTES = 1_000_000
_CHUNK_BYTES = 65_536
_CHUNKS_AHEAD = 16


async def read_lines(source: int | None) -> AsyncIterator[str]:
    """Yield lines from a file descriptor; bytes that are not UTF-8 become U+FFFD.

    A thread reads them: a terminal cannot be polled everywhere, and a file nowhere. It is a daemon
    and reads without Python's buffers, so that it never delays the end of the process.
    """
    if source is None:
        return
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    free_chunks = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk = b"more"
        with contextlib.suppress(RuntimeError):  # the event loop was closed
            while chunk:
                free_chunks.acquire()
                try:
                    chunk = os.read(source, _CHUNK_BYTES)
                except OSError:  # the terminal was closed
                    chunk = b""
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, name="read terminal", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        free_chunks.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _text(line)
        if len(rest) > _LONGEST_LINE_BYTES:
            yield _text(rest)
            rest = b""
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
