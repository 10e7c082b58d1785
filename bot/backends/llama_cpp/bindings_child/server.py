"""Serve the routes of llama.cpp's server that Troupe uses, so that one client fits both engines.

Token ids come in, text goes out as server-sent events.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bot.backends.llama_cpp.bindings_child.batching import Batcher
from bot.backends.llama_cpp.bindings_child.completion_request import (
    CompletionRequest,
    InvalidRequest,
    PromptTooLong,
    parse_request,
)
from bot.backends.llama_cpp.bindings_child.detokenizer import Detokenizer
from bot.backends.llama_cpp.bindings_child.native import NativeKvCache, Vocabulary
from bot.backends.llama_cpp.bindings_child.sampling import SamplerChain
from bot.backends.llama_cpp.bindings_child.slots import GeneratedChunk, Generation, Slot

T = TypeVar("T")

_MAX_BODY_BYTES = 64 * 1024 * 1024
_OPEN_PATH = "/health"  # needs no key


class BindingsServer:
    """The HTTP server of one model."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        cache: NativeKvCache,
        batcher: Batcher,
        slots: int,
        slots_folder: Path,
    ) -> None:
        self._vocabulary = vocabulary
        self._cache = cache
        self._batcher = batcher
        self._slots = slots
        self._slots_folder = slots_folder

    def app(self, key: str) -> web.Application:
        """Build the application; every route but /health needs the key."""
        app = web.Application(
            client_max_size=_MAX_BODY_BYTES,
            middlewares=[_require_key(key), _report_invalid_requests],
        )
        app.router.add_get(_OPEN_PATH, _health)
        app.router.add_get("/slots", self._get_slots)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post(r"/slots/{slot:\d+}", self._post_slot)
        return app

    async def _get_slots(self, _: web.Request) -> web.Response:
        """Describe the slots between two batches: without an answer the decoding thread hangs."""
        future = self._batcher.run_between_batches(self._describe)
        described: list[dict[str, object]] = await asyncio.wrap_future(future)
        return _json(described)

    def _describe(self, slots: Sequence[Slot]) -> list[dict[str, object]]:
        return [
            {
                "id": slot.number,
                "n_ctx": self._cache.slot_tokens,
                "is_processing": slot.generation is not None,
            }
            for slot in slots
        ]

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokenize = _decode(await request.read(), _Tokenize)
        # In a thread, as a long text must not delay the chunks of others.
        return _json({"tokens": await asyncio.to_thread(self._tokens, tokenize)})

    def _tokens(self, request: "_Tokenize") -> list[int]:
        tokens: list[int] = []
        add_special = request.add_special
        for part in request.content if isinstance(request.content, list) else [request.content]:
            if isinstance(part, int):
                tokens.append(part)
                continue
            tokens += self._vocabulary.tokenize(
                part, parse_special=request.parse_special, add_special=add_special
            )
            add_special = False
        return tokens

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = _decode(await request.read(), _Detokenize).tokens
        if not all(0 <= token < self._vocabulary.size for token in tokens):
            raise InvalidRequest("there is no such token", "tokens")
        data = b"".join(self._vocabulary.token_bytes(token) for token in tokens)
        return _json({"content": data.decode(errors="replace")})

    async def _post_slot(self, request: web.Request) -> web.Response:
        number = int(request.match_info["slot"])
        if number >= self._slots:
            raise InvalidRequest(f"there is no slot {number}", "id_slot")
        work = self._slot_action(request.query.get("action"), await request.read())
        done = self._batcher.run_when_free(number, work)
        try:
            counts = await asyncio.wrap_future(done)
        except OSError as error:
            raise InvalidRequest(str(error), "filename") from None
        return _json({"id_slot": number, **counts})

    def _slot_action(self, action: str | None, body: bytes) -> Callable[[Slot], dict[str, int]]:
        """Return what to do with a slot; it runs in the batcher's thread, which owns its tokens."""
        if action == "erase":
            return self._erase
        file = _decode(body, _File).filename
        if Path(file).name != file or file.startswith("."):
            raise InvalidRequest("name a file in the folder of saved slots", "filename")
        path = self._slots_folder / file
        match action:
            case "save":
                return lambda slot: {
                    "n_written": self._cache.save(slot.number, path, slot.tokens),
                    "n_saved": len(slot.tokens),
                }
            case "restore":
                return lambda slot: self._restore(slot, path)
            case _:
                raise InvalidRequest("use save, restore or erase", "action")

    def _erase(self, slot: Slot) -> dict[str, int]:
        erased = len(slot.tokens)
        self._cache.truncate(slot.number, 0)
        slot.tokens, slot.contiguous = [], 0
        return {"n_erased": erased}

    def _restore(self, slot: Slot, path: Path) -> dict[str, int]:
        slot.tokens = []
        slot.tokens = self._cache.restore(slot.number, path)
        slot.contiguous = len(slot.tokens)
        return {"n_restored": len(slot.tokens)}

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        completion = parse_request(
            await request.read(),
            vocabulary_size=self._vocabulary.size,
            slot_tokens=self._cache.slot_tokens,
            slots=self._slots,
        )
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[GeneratedChunk] = asyncio.Queue()

        def on_chunk(chunk: GeneratedChunk) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        generation = Generation(
            completion.prompt,
            SamplerChain(self._cache.context, self._vocabulary, completion),
            self._detokenizer(completion),
            on_chunk,
            slot=completion.id_slot if completion.id_slot >= 0 else None,
            max_tokens=completion.max_tokens,
            use_cache=completion.cache_prompt,
            min_shift_tokens=completion.n_cache_reuse,
        )
        self._batcher.submit(generation)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            while True:
                chunk = await chunks.get()
                await response.write(_event(chunk, len(completion.prompt)))
                if chunk.reason is not None:
                    return response
        finally:
            self._batcher.cancel(generation)

    def _detokenizer(self, completion: CompletionRequest) -> Detokenizer:
        # A stop that is a control token ends the generation by its id, as it has no text.
        vocabulary = self._vocabulary
        stops = {word: vocabulary.control_token(word) for word in completion.stop}
        tokens = frozenset(token for token in stops.values() if token is not None)
        words = [word for word, token in stops.items() if token is None]
        preserved = {vocabulary.control_token(word) for word in completion.preserved_tokens}
        return Detokenizer(
            lambda token: vocabulary.token_bytes(token, render_special=token in preserved),
            ends=vocabulary.ends | tokens,
            stop=words,
        )


class _Tokenize(msgspec.Struct):
    content: str | list[str | int]
    add_special: bool = False
    parse_special: bool = True


class _Detokenize(msgspec.Struct):
    tokens: list[int]


class _File(msgspec.Struct):
    filename: str


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


def _require_key(key: str) -> Middleware:
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if request.path != _OPEN_PATH and not hmac.compare_digest(given, expected):
            raise web.HTTPUnauthorized
        return await handler(request)

    return check


@web.middleware
async def _report_invalid_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except InvalidRequest as error:
        kind = (
            "exceed_context_size_error"
            if isinstance(error, PromptTooLong)
            else "invalid_request_error"
        )
        detail = {"message": str(error), "type": kind, "param": error.parameter}
        return _json({"error": detail}, HTTPStatus.BAD_REQUEST)


async def _health(_: web.Request) -> web.Response:
    return _json({"status": "ok"})


def _decode(body: bytes, form: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(error)) from None


def _json(
    value: Mapping[str, object] | Sequence[object], status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )
