"""Serve the routes of llama.cpp's server that Troupe uses, so that one client fits both engines.

Token ids come in, text goes out as server-sent events. One thread runs the model; what arrives
meanwhile waits for it.
"""

import asyncio
import hmac
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bot.backends.llama_cpp.bindings_child.completion_request import InvalidRequest, parse_request
from bot.backends.llama_cpp.bindings_child.served_model import GeneratedChunk, ServedModel

T = TypeVar("T")

_MAX_BODY_BYTES = 64 * 1024 * 1024
_OPEN_PATH = "/health"  # needs no key


class BindingsServer:
    """The HTTP server of one model."""

    def __init__(self, model: ServedModel, slots_folder: Path) -> None:
        self._model = model
        self._slots_folder = slots_folder
        self._worker = ThreadPoolExecutor(max_workers=1)

    def app(self, key: str) -> web.Application:
        """Build the application; every route but /health needs the key."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_check_requests(key)])
        app.router.add_get(_OPEN_PATH, _health)
        app.router.add_get("/slots", self._get_slots)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/slots/0", self._post_slot)
        return app

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the thread of the model, when that is free."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *args)

    async def _get_slots(self, _: web.Request) -> web.Response:
        """Describe the only slot while it is idle: without an answer the model hangs."""
        context_tokens = await self._run(lambda: self._model.context_tokens)
        return web.json_response([{"id": 0, "n_ctx": context_tokens, "is_processing": False}])

    async def _tokenize(self, request: web.Request) -> web.Response:
        given = await request.json()

        def tokenize() -> list[int]:
            special = {name: given[name] for name in ("parse_special", "add_special")}
            tokens: list[int] = []
            for part in given["content"]:
                tokens += self._model.tokenize(part, **special) if isinstance(part, str) else [part]
            return tokens

        # In a thread, as a long text must not delay the chunks of others.
        return web.json_response({"tokens": await asyncio.to_thread(tokenize)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        data = b"".join(map(self._model.token_bytes, tokens))
        return web.json_response({"content": data.decode(errors="replace")})

    async def _post_slot(self, request: web.Request) -> web.Response:
        action = request.query["action"]
        if action == "erase":
            await self._run(self._model.erase)
            return web.json_response({})
        path = self._slots_folder / (await request.json())["filename"]
        if path.parent != self._slots_folder:
            raise InvalidRequest("name a file in the folder of saved slots")
        if action == "save":
            return web.json_response({"n_saved": await self._run(self._model.save, path)})
        return web.json_response({"n_restored": await self._run(self._model.restore, path)})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        completion = parse_request(await request.read())
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[GeneratedChunk | None]()
        cancelled = threading.Event()

        def generate() -> None:
            try:
                for chunk in self._model.generate(completion, cancelled.is_set):
                    loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            finally:
                loop.call_soon_threadsafe(chunks.put_nowait, None)

        generating = loop.run_in_executor(self._worker, generate)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            while (chunk := await chunks.get()) is not None:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(_event(chunk, len(completion.prompt)))
            await generating  # raises what has ended it
        finally:
            cancelled.set()
        return response


def _event(chunk: GeneratedChunk, prompt_tokens: int) -> bytes:
    body: dict[str, object] = {"choices": [{"text": chunk.text, "finish_reason": chunk.reason}]}
    if chunk.reason is None:
        return b"data: " + msgspec.json.encode(body) + b"\n\n"
    body["usage"] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": chunk.generated,
        "prompt_tokens_details": {"cached_tokens": chunk.cached},
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"


def _check_requests(key: str) -> Middleware:
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if request.path != _OPEN_PATH and not hmac.compare_digest(given, expected):
            raise web.HTTPUnauthorized
        try:
            return await handler(request)
        except InvalidRequest as error:
            described = {"message": str(error), "type": error.kind}
            return web.json_response({"error": described}, status=HTTPStatus.BAD_REQUEST)

    return check


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})
