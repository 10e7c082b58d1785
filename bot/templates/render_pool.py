"""Render untrusted templates in child processes that can be killed.

Twenty characters of Jinja can allocate ten gigabytes, so CPU time, memory, and output are limited.
A request that gets no CPU time may be retried, and does not count against its template.
"""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, cast

import structlog

from bot.errors import RenderUnavailable, TemplateError, TemplateLimitExceeded
from bot.runtime.operating_system import HAS_CPU_LIMIT, OWN_SESSION_OPTIONS, minimal_environment
from bot.templates.control_tokens import TextSpan
from bot.templates.jinja_template import MAX_SOURCE_BYTES, Message
from bot.templates.render_process import (
    LENGTH_PREFIX,
    MAX_CPU_SECONDS,
    MAX_MEMORY_BYTES,
    OUT_OF_MEMORY_PREFIX,
    TEMPLATE_FAILED_PREFIX,
)

_log = structlog.get_logger(__name__)
# Far above MAX_CPU_SECONDS for a busy machine; the only limit where CPU time is not limited.
ANSWER_TIMEOUT_SECONDS: Final = 30.0 if HAS_CPU_LIMIT else 5.0
START_TIMEOUT_SECONDS: Final = 60.0
IDLE_TIMEOUT_SECONDS: Final = 30.0
SECONDS_BETWEEN_PROCESS_STARTS: Final = 1.0
EXIT_TIMEOUT_SECONDS: Final = 5.0
MAX_STRIKES: Final = 3
MAX_REMEMBERED_STRIKES: Final = 1000
TOKEN_OPTIONS: Final = ("bos_token", "eos_token")
_CPU_LIMIT_EXIT_CODES: Final = {-24, -27}  # SIGXCPU and SIGPROF
_KILLED_EXIT_CODES: Final = {None, -9, -15}  # no exit, SIGKILL, and SIGTERM
PACKAGE_PARENT_FOLDER: Final = Path(__file__).resolve().parents[2]


class RenderProcessPool:
    """A pool of processes that each render one request at a time, and are replaced if killed."""

    def __init__(self, process_count: int = 2) -> None:
        self._idle_processes: asyncio.LifoQueue[_RenderProcess] = asyncio.LifoQueue()
        self._processes: set[_RenderProcess] = set()
        self._process_count = process_count
        self._replacement_tasks: set[asyncio.Task[None]] = set()
        self._strikes: Counter[str] = Counter()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        try:
            for _ in range(self._process_count):
                await self._add_process()
        except BaseException as error:
            await self._stop_all()
            if isinstance(error, OSError | asyncio.IncompleteReadError):
                raise RenderUnavailable("the render process did not start; try again") from error
            raise
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self._stop_all()

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(one.process.pid for one in self._processes)

    async def _add_process(self) -> None:
        process = await _start_process()
        self._processes.add(process)
        self._idle_processes.put_nowait(process)

    async def render(self, source: str, messages: Sequence[Message], **options: Any) -> str:
        """Render like `JinjaTemplate`; may raise `RenderUnavailable` or `TemplateLimitExceeded`."""
        return await self._request_rendering(source, messages, options, as_spans=False)

    async def render_spans(
        self, source: str, messages: Sequence[Message], **options: Any
    ) -> list[TextSpan]:
        answer = await self._request_rendering(source, messages, options, as_spans=True)
        return [TextSpan(text, is_trusted) for text, is_trusted in json.loads(answer)]

    async def _request_rendering(
        self, source: str, messages: Sequence[Message], options: dict[str, Any], *, as_spans: bool
    ) -> str:
        if len(source.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES:
            raise TemplateError(f"the template is longer than {MAX_SOURCE_BYTES // 1024} KiB")
        if self._strikes[source] >= MAX_STRIKES:
            raise TemplateLimitExceeded(
                f"this template was stopped {MAX_STRIKES} times; fix it before you use it again"
            )
        tokens = {name: options.pop(name) for name in TOKEN_OPTIONS if name in options}
        request_fields = {
            "source": source,
            "messages": messages,
            "tokens": tokens,
            "options": options,
            "as_spans": as_spans,
        }
        request = json.dumps(request_fields, default=datetime.isoformat).encode()
        try:
            try:
                answer = await self._ask_idle_process(request)
            except RenderUnavailable:  # retry once, in another process
                answer = await self._ask_idle_process(request)
        except TemplateLimitExceeded:
            if len(self._strikes) >= MAX_REMEMBERED_STRIKES:
                self._strikes.clear()
            self._strikes[source] += 1
            raise
        text = answer[1:].decode(errors="surrogatepass")
        if answer.startswith(TEMPLATE_FAILED_PREFIX):
            raise TemplateError(text)
        self._strikes.pop(source, None)
        return text

    async def _ask_idle_process(self, request: bytes) -> bytes:
        process = await self._take_idle_process()
        try:
            answer = await process.ask(request)
        except BaseException:
            # This process is dead, or may still be working on the abandoned request.
            process.kill()
            task = asyncio.create_task(
                self._replace_process(process), name="replace a render process"
            )
            self._replacement_tasks.add(task)
            task.add_done_callback(self._replacement_tasks.discard)
            raise
        self._idle_processes.put_nowait(process)
        if answer.startswith(OUT_OF_MEMORY_PREFIX):
            limit = MAX_MEMORY_BYTES // 2**20
            raise TemplateLimitExceeded(
                f"the template was stopped: it needs more than {limit} MiB of memory"
            )
        return answer

    async def _take_idle_process(self) -> "_RenderProcess":
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                return await self._idle_processes.get()
        except TimeoutError:
            raise RenderUnavailable(
                f"no render process was free for {IDLE_TIMEOUT_SECONDS:.0f} s; try again"
            ) from None

    async def _replace_process(self, process: "_RenderProcess") -> None:
        await process.stop()
        self._processes.discard(process)
        while not self._is_closing:
            try:
                await self._add_process()
            except (OSError, asyncio.IncompleteReadError):  # TimeoutError is an OSError
                _log.exception("render_process_not_started")
                await asyncio.sleep(SECONDS_BETWEEN_PROCESS_STARTS)
            else:
                return

    async def _stop_all(self) -> None:
        # Wait for starts in progress, because a cancelled start would leave a process behind.
        self._is_closing = True
        for task in tuple(self._replacement_tasks):
            await task
        for process in self._processes:
            await process.stop()


@dataclass(eq=False, slots=True)
class _RenderProcess:
    process: asyncio.subprocess.Process
    request_writer: asyncio.StreamWriter
    answer_reader: asyncio.StreamReader

    async def ask(self, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                self.request_writer.write(LENGTH_PREFIX.pack(len(request)) + request)
                await self.request_writer.drain()
                return await self.read()
        except TimeoutError:
            if not HAS_CPU_LIMIT:
                raise _too_slow_error(f"{ANSWER_TIMEOUT_SECONDS:.0f} s") from None
            raise RenderUnavailable(
                f"the render process did not respond for {ANSWER_TIMEOUT_SECONDS:.0f} s; try again"
            ) from None
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise _exit_error(await self._wait_for_exit_code()) from error

    async def _wait_for_exit_code(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_SECONDS):
                return await self.process.wait()
        return None

    async def read(self) -> bytes:
        header = await self.answer_reader.readexactly(LENGTH_PREFIX.size)
        return await self.answer_reader.readexactly(*LENGTH_PREFIX.unpack(header))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> None:
        self.kill()
        self.request_writer.close()
        await self.process.wait()


async def _start_process() -> _RenderProcess:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-s", "-m", "bot.templates.render_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=minimal_environment(PACKAGE_PARENT_FOLDER),
        **OWN_SESSION_OPTIONS,
    )
    pipes = cast(tuple[asyncio.StreamWriter, asyncio.StreamReader], (process.stdin, process.stdout))
    render_process = _RenderProcess(process, *pipes)
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            await render_process.read()
    except BaseException:
        await render_process.stop()
        raise
    return render_process


def _too_slow_error(limit: str) -> TemplateLimitExceeded:
    return TemplateLimitExceeded(f"the template was stopped: it used more than {limit}")


def _exit_error(exit_code: int | None) -> TemplateError:
    if exit_code in _CPU_LIMIT_EXIT_CODES:
        return _too_slow_error(f"{MAX_CPU_SECONDS * 1000:.0f} ms of CPU time")
    if exit_code in _KILLED_EXIT_CODES:  # by a user, or by the kernel because memory ran out
        return RenderUnavailable("the render process was killed; try again")
    return TemplateLimitExceeded("the template was stopped: it crashed the render process")
