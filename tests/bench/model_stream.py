"""Measure the CPU of one streamed answer in the client: `python -m tests.bench.model_stream`.

A fake service in a process of its own streams 40 chunks, paced (80 a second) and at once. What is
counted is user and system time of this process only.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import uvloop

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Message, Prompt
from bot.replying.generate import generate_answer
from bot.runtime.clock import SystemClock

CHUNKS = 40
CHUNKS_PER_SECOND = 80
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while")
_HISTORY = tuple(
    Message("user" if at % 2 == 0 else "assistant", f"turn {at}: {' '.join(_WORDS * 3)}")
    for at in range(21)
)
PROMPT = Prompt(
    messages=(Message("system", "You are a helpful assistant."), *_HISTORY),
    model="gpt-4o",
    conversation="bench",
    stop=("\nAnn:", "\nBob:", "\nNora:"),
    answers_as="Nora",
    speakers=("Ann", "Bob"),
)


def _event(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-Bx7Qe2kLr0hXj5TnVw3aMdPzYu8sG",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "gpt-4o-2024-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_a1b2c3d4e5",
        "choices": [choice],
    }


def _encode(value: object) -> bytes:
    data = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _body() -> Iterator[bytes]:
    yield _encode(_event({"role": "assistant", "content": "", "refusal": None}))
    for at in range(CHUNKS):
        yield _encode(_event({"content": f"{_WORDS[at % len(_WORDS)]} "}))
    usage = {"prompt_tokens": 500, "completion_tokens": CHUNKS, "total_tokens": 500 + CHUNKS}
    end = _encode(_event({}, "stop")) + _encode({**_event({}), "choices": [], "usage": usage})
    yield end + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
    pieces = list(_body())
    start = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(size)
            writer.write(start + pieces[0])
            if rate:
                begun = time.monotonic()
                for at, piece in enumerate(pieces[1:], 1):
                    await asyncio.sleep(begun + at / rate - time.monotonic())
                    writer.write(piece)
            else:
                writer.write(b"".join(pieces[1:]))
            await writer.drain()
    writer.close()


async def _serve() -> None:
    for rate in (CHUNKS_PER_SECOND, 0):
        server = await asyncio.start_server(partial(_answer, rate=rate), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


def _drop(_shown: object) -> None:
    pass


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _measure(port: str, answers: int, concurrent: int) -> tuple[float, float, float]:
    """Return the CPU milliseconds of an answer, its seconds, and those to its first text."""
    settings = OpenAISettings.model_validate({"base_url": f"http://127.0.0.1:{port}/v1"})
    backend = OpenAICompatibleBackend(settings, "bench")
    clock = SystemClock()
    seconds: list[float] = []
    firsts: list[float] = []

    async def ask_in_turn(number: int) -> None:
        await asyncio.sleep(number * 0.037)
        for _ in range(answers // concurrent):
            answer = await generate_answer(backend, PROMPT, _drop, _drop, clock)
            assert answer.text.count(" ") == CHUNKS - 1, answer
            seconds.append(answer.seconds)
            firsts.append(answer.first_word_seconds or 0)

    await backend.count_tokens(PROMPT)
    await generate_answer(backend, PROMPT, _drop, _drop, clock)
    begun = _cpu_seconds()
    async with asyncio.TaskGroup() as tasks:
        for number in range(concurrent):
            tasks.create_task(ask_in_turn(number))
    used = _cpu_seconds() - begun
    await backend.close()
    return used * 1000 / len(seconds), statistics.median(seconds), statistics.median(firsts)


def main() -> None:
    """Print the medians of several runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="play the service (for itself)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--concurrent", type=int, default=8)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(_serve())
        return
    command = [sys.executable, "-m", "tests.bench.model_stream", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ports = [server.stdout.readline().strip() for _ in range(2)]
        try:
            for name, port in zip(("paced", "at once"), ports, strict=True):
                runs = [
                    uvloop.run(_measure(port, given.answers, given.concurrent))
                    for _ in range(given.runs)
                ]
                cpu, seconds, first = (statistics.median(each) for each in zip(*runs, strict=True))
                print(  # noqa: T201
                    f"{name}: {cpu:.2f} ms of CPU for an answer"
                    f" ({min(run[0] for run in runs):.2f} at best), answered in {seconds:.3f} s,"
                    f" first text after {first * 1000:.0f} ms"
                )
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
