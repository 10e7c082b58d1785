"""A chat API on loopback that says exactly the bytes a test wants, or fails exactly as it wants.

A script is a list of steps: bytes to send, seconds to sleep, or CUT (reset the connection). Scripts are
used up in order; without one it answers well. Every request is in `log`, with how it ended.
"""

import asyncio
import contextlib
import json

CUT = object()
DONE = b"data: [DONE]\n\n"


def chunk(content=None, finish=None, **delta):
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def event(value):
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def said(*texts):
    return b"".join(chunk(text) for text in texts)


USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }
)
STOP = chunk(finish="stop")
WELL = [chunk("", role="assistant") + said("Hel", "lo ", "there") + STOP + USAGE + DONE]


class Script:
    def __init__(self, steps, status=200, headers=None, content_type="text/event-stream"):
        self.steps = steps
        self.status = status
        self.headers = {"Content-Type": content_type, **(headers or {})}


def thinking(body, thoughts, answer=("Hi ", "there."), field="reasoning"):
    """Return a script that spends the output tokens first on thoughts, then on the answer."""
    limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
    limit = min((each for each in limits if each), default=10**6)
    pieces = [*(chunk(**{field: f"hm {n} "}) for n in range(thoughts)), *map(chunk, answer)]
    finish = "stop" if len(pieces) <= limit else "length"
    return Script([b"".join(pieces[:limit]), chunk(finish=finish), DONE])


class FakeOpenAI:
    well = WELL

    def __init__(self):
        self.log = []  # of dictionaries: path, headers, body, ended ("whole", "hung up", "cut")
        self.scripts = []
        self.listed = []  # path and api-key of requests for the models
        self.models_status = 200
        self.models_below = "/"  # elsewhere there are none
        self.models_body = b'{"object":"list","data":[{"id":"m"}]}'
        self.unknown_models = set()
        self.replies = None  # makes a script of a request's body
        self.connections = 0
        self._server = None
        self._tasks = set()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def plays(self, *scripts):
        self.scripts += [each if isinstance(each, Script) else Script(each) for each in scripts]

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=5) if self._tasks else None

    async def asked(self, number=0, seconds=120):
        """Wait until a request has arrived."""
        async with asyncio.timeout(seconds):
            while len(self.log) <= number:
                await asyncio.sleep(0.005)

    async def ended(self, number=0, seconds=120):
        """Wait for the end of the request; return how it ended."""
        await self.asked(number, seconds)
        async with asyncio.timeout(seconds):
            while self.log[number]["ended"] is None:
                await asyncio.sleep(0.005)
        return self.log[number]["ended"]

    def refusal(self, entry):
        """Return the error for a request that the real service would reject."""
        if entry["body"].get("model") in self.unknown_models:
            return Script([b'{"error": {"code": "model_not_found"}}'], status=404)
        return self.replies(entry["body"]) if self.replies else None

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {k.lower(): v.strip() for k, v in (x.split(":", 1) for x in head[1:] if ":" in x)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if path.partition("?")[0].endswith("/models"):
            self.listed.append((path, headers.get("api-key")))
            status = self.models_status if path.startswith(self.models_below) else 404
            body = self.models_body
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            await writer.drain()
            return True
        entry = {"path": path, "headers": headers, "body": json.loads(raw), "ended": None}
        self.log.append(entry)
        script = self.scripts.pop(0) if self.scripts else self.refusal(entry) or Script(self.well)
        plays = asyncio.create_task(self._play(script, writer))
        try:
            while not plays.done() and not reader.at_eof() and not writer.is_closing():
                await asyncio.wait({plays}, timeout=0.01)
            entry["ended"] = plays.result() if plays.done() else "hung up"
        finally:
            plays.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await plays
        return entry["ended"] == "whole"

    async def _play(self, script, writer):
        headers = "".join(f"{name}: {value}\r\n" for name, value in script.headers.items())
        start = f"HTTP/1.1 {script.status} X\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
        try:
            for step in script.steps:
                if step is CUT:
                    writer.transport.abort()
                    return "cut"
                if isinstance(step, bytes):
                    writer.write(start + (b"%x\r\n%s\r\n" % (len(step), step) if step else b""))
                    start = b""
                    await writer.drain()
                else:
                    await asyncio.sleep(step)
            writer.write(start + b"0\r\n\r\n")
            await writer.drain()
        except ConnectionError:
            return "hung up"
        return "whole"
