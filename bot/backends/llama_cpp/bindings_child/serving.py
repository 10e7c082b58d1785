"""The few paths of llama.cpp's server that Troupe uses, in the same words.

So one client serves both engines. Token ids come in, pieces of text go out as events.
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

from bot.backends.llama_cpp.bindings_child.asking import Question, Refused, TooLong, read_question
from bot.backends.llama_cpp.bindings_child.batching import Batcher
from bot.backends.llama_cpp.bindings_child.native import NativeMemory, Vocabulary
from bot.backends.llama_cpp.bindings_child.sampling import Chain
from bot.backends.llama_cpp.bindings_child.slots import Answer, Piece, Slot
from bot.backends.llama_cpp.bindings_child.wording import Wording

T = TypeVar("T")

_MAX_BODY_BYTES = 64 * 1024 * 1024
_OPEN_PATH = "/health"  # asked before anybody has read the key


class Server:
    """Answers for one model."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        memory: NativeMemory,
        batcher: Batcher,
        slots: int,
        states: Path,
    ) -> None:
        self._vocabulary = vocabulary
        self._memory = memory
        self._batcher = batcher
        self._slots = slots
        self._states = states

    def app(self, key: str) -> web.Application:
        """Everything but /health wants the key."""
        app = web.Application(
            client_max_size=_MAX_BODY_BYTES, middlewares=[_only_with(key), _refusing]
        )
        app.router.add_get(_OPEN_PATH, _health)
        app.router.add_get("/slots", self._look)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post(r"/slots/{slot:\d+}", self._act)
        return app

    async def _look(self, _: web.Request) -> web.Response:
        """Answered between two batches, so that no answer means that nothing moves."""
        looking = self._batcher.between_batches(self._described)
        described: list[dict[str, object]] = await asyncio.wrap_future(looking)
        return _json(described)

    def _described(self, slots: Sequence[Slot]) -> list[dict[str, object]]:
        room = self._memory.sequence_tokens
        return [
            {"id": slot.number, "n_ctx": room, "is_processing": slot.answer is not None}
            for slot in slots
        ]

    async def _tokenize(self, request: web.Request) -> web.Response:
        asked = _read(await request.read(), _Tokenize)
        # In a thread: a long text takes a while, and others' answers are to flow meanwhile.
        return _json({"tokens": await asyncio.to_thread(self._tokens, asked)})

    def _tokens(self, asked: "_Tokenize") -> list[int]:
        tokens: list[int] = []
        begun = asked.add_special
        for part in asked.content if isinstance(asked.content, list) else [asked.content]:
            if isinstance(part, int):
                tokens.append(part)
                continue
            tokens += self._vocabulary.tokens(part, special=asked.parse_special, begun=begun)
            begun = False
        return tokens

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = _read(await request.read(), _Detokenize).tokens
        if not all(0 <= token < self._vocabulary.size for token in tokens):
            raise Refused("there is no such token", "tokens")
        data = b"".join(self._vocabulary.spelled(token) for token in tokens)
        return _json({"content": data.decode(errors="replace")})

    async def _act(self, request: web.Request) -> web.Response:
        number = int(request.match_info["slot"])
        if number >= self._slots:
            raise Refused(f"there is no slot {number}", "id_slot")
        work = self._work(request.query.get("action"), await request.read())
        done = self._batcher.when_free(number, work)
        try:
            counts = await asyncio.wrap_future(done)
        except OSError as error:
            raise Refused(str(error), "filename") from None
        return _json({"id_slot": number, **counts})

    def _work(self, action: str | None, body: bytes) -> Callable[[Slot], dict[str, int]]:
        """What to do with a slot; the lists of its tokens are those of the batcher's thread."""
        if action == "erase":
            return self._erase
        file = _read(body, _File).filename
        if Path(file).name != file or file.startswith("."):
            raise Refused("a saved slot is a file in the folder of saved slots", "filename")
        path = self._states / file
        match action:
            case "save":
                return lambda slot: {
                    "n_written": self._memory.save(slot.number, path, slot.tokens),
                    "n_saved": len(slot.tokens),
                }
            case "restore":
                return lambda slot: self._restore(slot, path)
            case _:
                raise Refused("a slot is saved, restored or erased", "action")

    def _erase(self, slot: Slot) -> dict[str, int]:
        erased = len(slot.tokens)
        self._memory.cut(slot.number, 0)
        slot.tokens, slot.straight = [], 0
        return {"n_erased": erased}

    def _restore(self, slot: Slot, path: Path) -> dict[str, int]:
        slot.tokens = []
        slot.tokens = self._memory.restore(slot.number, path)
        slot.straight = len(slot.tokens)
        return {"n_restored": len(slot.tokens)}

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        question = read_question(
            await request.read(),
            vocabulary_size=self._vocabulary.size,
            sequence_tokens=self._memory.sequence_tokens,
            slots=self._slots,
        )
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Piece] = asyncio.Queue()

        def tell(piece: Piece) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        answer = Answer(
            question.prompt,
            Chain(self._memory.context, self._vocabulary, question),
            self._wording(question),
            tell,
            slot=question.id_slot if question.id_slot >= 0 else None,
            max_tokens=question.max_tokens,
            remembers=question.cache_prompt,
            least_moved=question.n_cache_reuse,
        )
        self._batcher.ask(answer)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            while True:
                piece = await pieces.get()
                await response.write(_event(piece, len(question.prompt)))
                if piece.reason is not None:
                    return response
        finally:
            self._batcher.leave(answer)

    def _wording(self, question: Question) -> Wording:
        # Where a stop is a control token, the token ends the answer: it has no text of its own.
        vocabulary = self._vocabulary
        found = {word: vocabulary.control(word) for word in question.stop}
        tokens = frozenset(token for token in found.values() if token is not None)
        words = [word for word, token in found.items() if token is None]
        shown = {vocabulary.control(word) for word in question.preserved_tokens}
        return Wording(
            lambda token: vocabulary.spelled(token, special=token in shown),
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


def _event(piece: Piece, prompt_tokens: int) -> bytes:
    body: dict[str, object] = {"choices": [{"text": piece.text, "finish_reason": piece.reason}]}
    if piece.reason is None:
        return b"data: " + msgspec.json.encode(body) + b"\n\n"
    body["usage"] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": piece.written,
        "prompt_tokens_details": {"cached_tokens": piece.cached},
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"


def _only_with(key: str) -> Middleware:
    wanted = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if request.path != _OPEN_PATH and not hmac.compare_digest(given, wanted):
            raise web.HTTPUnauthorized
        return await handler(request)

    return check


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        kind = (
            "exceed_context_size_error" if isinstance(error, TooLong) else "invalid_request_error"
        )
        detail = {"message": str(error), "type": kind, "param": error.parameter}
        return _json({"error": detail}, HTTPStatus.BAD_REQUEST)


async def _health(_: web.Request) -> web.Response:
    return _json({"status": "ok"})


def _read(body: bytes, form: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise Refused(str(error)) from None


def _json(
    value: Mapping[str, object] | Sequence[object], status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )
