"""A loopback chat completions server that sends the expected answers with set delays."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

from aiohttp import web

from bot.memory.extraction import NOTE_INSTRUCTION
from tests.support.transcripts import ANSWER_END, QUESTION, expected_answer
from tests.waiting import wait_until


class Model:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        """While this is not set, every answer stops halfway."""
        self.requests: list[dict[str, Any]] = []
        self.halfway = 0
        """The number of answers that got halfway."""
        self.hung_up = 0
        """The number of answers whose client closed the connection."""
        self.hung_up_at = 0.0
        """The Unix time when a client last closed the connection."""
        self.heard: list[bytes] = []
        """The voice messages received for transcription."""
        self.reset()
        self._runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=1)
        self.base = ""

    def reset(self) -> None:
        self.gate.set()
        self.chunk_delays: Sequence[float] = (0.01,)  # seconds; each answer takes one of them
        self.chunk_count = 4
        self.answers_all = False
        """Whether it answers everything since the last answer, not only the newest question."""
        self.thoughts: Sequence[str] = ()
        """The pieces of reasoning sent before each answer."""
        self.spoken = ""
        """The transcript of every voice message."""
        self.reaction = ""
        """The emoji for a reaction instead of an answer, if the reaction tool is offered."""
        self.take_notes: Callable[[str], Sequence[Mapping[str, object]]] = lambda _transcript: ()
        """Returns the notes for a transcript in a request for memories."""

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        await self._runner.cleanup()

    def grow_slowly(self) -> None:
        """Take some seconds for each answer from now on, so that live updates are sent."""
        self.chunk_delays, self.chunk_count = (0.4,), 8

    @contextmanager
    def held(self) -> Iterator[None]:
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    @asynccontextmanager
    async def reaching_half(self, answers: int = 1) -> AsyncIterator[None]:
        """When the block ends, wait until this many more answers are half complete."""
        reached = self.halfway + answers
        yield
        await wait_until(lambda: self.halfway >= reached)

    @asynccontextmanager
    async def hanging_up(self, answers: int = 1) -> AsyncIterator[None]:
        """When the block ends, wait until clients have aborted this many more answers."""
        hung_up = self.hung_up + answers
        yield
        await wait_until(lambda: self.hung_up >= hung_up)

    def asked_about(self, token: str) -> list[dict[str, Any]]:
        return [one for one in self.requests if token in str(one["messages"][-1]["content"])]

    @property
    def transcripts(self) -> list[str]:
        """Return the transcripts in requests for memories."""
        asked = [one["messages"] for one in self.requests]
        return [_text(one[-1]["content"]) for one in asked if one[0]["content"] == NOTE_INSTRUCTION]

    def newest_message(self, token: str) -> Any:
        return self.asked_about(token)[-1]["messages"][-1]["content"]

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        return app

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _transcribe(self, request: web.Request) -> web.Response:
        sent = (await request.post())["file"]
        assert isinstance(sent, web.FileField)
        with sent.file as audio:
            self.heard.append(audio.read())
        return web.json_response({"text": self.spoken})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._stream_answer(request)
        except asyncio.CancelledError:
            self.hung_up += 1
            self.hung_up_at = time.time()
            raise

    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if messages[0]["content"] == NOTE_INSTRUCTION:
            notes = json.dumps(self.take_notes(_text(messages[-1]["content"])), ensure_ascii=False)
            return f"```json\n{notes}\n```"
        questions = unanswered_questions(messages)
        answered = questions if self.answers_all else questions[-1:]
        return " ".join(map(expected_answer, answered))

    async def _stream_answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        answer = self.write_answer(asked["messages"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.reaction and "react" in str(asked.get("tools")):
            called = {"name": "react", "arguments": json.dumps({"emoji": self.reaction})}
            call = {"index": 0, "id": "c1", "type": "function", "function": called}
            await response.write(_event({"tool_calls": [call]}, None))
            await response.write(_event({}, "tool_calls"))
            await response.write(b"data: [DONE]\n\n")
            return response
        for thought in self.thoughts:
            await response.write(_event({"reasoning_content": thought}, None))
            await asyncio.sleep(0.3)
        size = -(-len(answer) // self.chunk_count)
        pause = random.choice(self.chunk_delays)
        chunk_count = [answer[start : start + size] for start in range(0, len(answer), size)]
        for number, piece in enumerate(chunk_count):
            if number == len(chunk_count) // 2:
                self.halfway += 1
                await self.gate.wait()
            await asyncio.sleep(pause)
            await response.write(_event({"content": piece}, None))
        await response.write(_event({}, "stop"))
        await response.write(b"data: [DONE]\n\n")
        return response


def unanswered_questions(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all questions after the last answer, or the last question if there are none."""
    last = ""
    since: list[str] = []
    for one in messages:
        text = _text(one["content"])
        ends = [found.end() for found in ANSWER_END.finditer(text)]
        if one["role"] == "assistant" or ends:
            since = []
        if one["role"] == "user":
            asked = list(QUESTION.finditer(text))
            since += [found[0] for found in asked if found.start() >= max(ends, default=0)]
            last = asked[-1][0] if asked else last
    return since or [last]


def _event(delta: Mapping[str, object], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"


def _text(content: str | list[dict[str, str]] | None) -> str:
    if content is None or isinstance(content, str):  # a message may only call tools
        return content or ""
    return "".join(part.get("text", "") for part in content)
