"""Start an MCP server as a child process and exchange lines of JSON with it.

The transport of the `mcp` package is not used, because it collects a line without an end in memory
and leaves the process behind when this one is killed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from bot.runtime.subprocesses import DIE_WITH_PARENT
from bot.runtime.tasks import cancel_and_wait

MAX_MESSAGE_BYTES = 1024 * 1024
"""The longest message of a server; a longer one is left out, and who waits for it waits in vain."""

_END_SECONDS = 2.0
_Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]
"""What is received, and where to put what is to be sent."""


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_file: Path,
    on_end: Callable[[], object],
) -> AsyncIterator[_Streams]:
    """Run the process while the block runs, and yield the streams of its messages.

    Args:
        command: the program and its arguments.
        environment: what is set beside PATH, HOME and the like; nothing else is inherited.
        log_file: gets its stderr, from this start on.
        on_end: is called when its output ends.

    Raises:
        OSError: it cannot be started.
    """
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**get_default_environment(), **environment},
            limit=MAX_MESSAGE_BYTES,
            preexec_fn=DIE_WITH_PARENT,
            start_new_session=True,
        )
    received_to, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sent_from = anyio.create_memory_object_stream[SessionMessage](0)
    jobs = [
        asyncio.create_task(_receive(process, received_to, on_end)),
        asyncio.create_task(_send(process, sent_from, received_to)),
    ]
    try:
        yield received, sent
    finally:
        try:
            await _end(process)
        finally:
            await cancel_and_wait(jobs)
            for stream in (received_to, received, sent, sent_from):
                stream.close()
            with contextlib.suppress(TimeoutError, ValueError):
                async with asyncio.timeout(_END_SECONDS):
                    await process.communicate()  # until its pipes are closed


async def _receive(
    process: asyncio.subprocess.Process,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], object],
) -> None:
    """Pass on each line; the stream ends with the output. What is too long is left out."""
    assert process.stdout is not None  # noqa: S101 -- it is a pipe
    try:
        with received, contextlib.suppress(OSError, anyio.BrokenResourceError):
            while True:
                try:
                    line = await process.stdout.readline()
                    message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:  # too long, or no message, such as a line of a log
                    if process.stdout.at_eof():
                        return
                    await received.send(error)
                else:
                    await received.send(SessionMessage(message))
    finally:
        on_end()


async def _send(
    process: asyncio.subprocess.Process,
    sent: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Write each message; when the process reads no more, the connection ends."""
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    with received, contextlib.suppress(OSError):
        async for one in sent:
            written = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(written.encode() + b"\n")
            await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, then end it with all its children: first asked, then killed."""
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    process.stdin.close()
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        if ask is not None:
            _signal_all(process, ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
                break
    _signal_all(process, signal.SIGKILL)  # what it has left behind


def _signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
