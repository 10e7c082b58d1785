"""The engine `llama_cpp_python`: a child process that serves one model through the Python bindings.

It serves those routes of llama.cpp's server that Troupe uses, on a Unix socket, one request at a
time. Its argument is a JSON object of options.

It uses `Llama.generate`, which returns tokens. `Llama.create_completion` returns text, but hides
control tokens and, after an invalid byte, withholds all text until the end and loses some of it.

These functions of llama.cpp's C API, which the bindings export, do what `Llama` cannot:

llama_model_get_vocab        the vocabulary, for the next three
llama_vocab_is_eog           several tokens may end a turn, but `Llama` reports one
llama_token_to_piece         `Llama.detokenize` drops tokens of more than 32 bytes
llama_sampler_init_grammar   checks a grammar; `Llama` ignores invalid ones
llama_sampler_free           frees the sampler of that check
"""

import asyncio
import ctypes
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import llama_cpp
import msgspec
import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler
from llama_cpp import Llama, LlamaGrammar, LlamaState, LogitsProcessorList

from bot.backends.llama_cpp.bindings_request import (
    CompletionRequest,
    Detokenizer,
    InvalidRequest,
    SamplingParameters,
    parse_request,
)
from bot.value_class import value_class

_BATCH_TOKENS = 128  # half a second on one core; a request is cancelled between two batches
_ALL_LAYERS = -1
_BANNED_TOKEN_BIAS = -float("inf")
T = TypeVar("T")
_MAX_BODY_BYTES = 64 * 1024 * 1024
_SHUTDOWN_TIMEOUT_SECONDS = 0.2


@value_class
class GeneratedChunk:
    text: str
    finish_reason: str | None = None
    """In the last chunk: "stop" or "length"."""
    cached_tokens: int = 0
    generated_tokens: int = 0


class ServedModel:
    """Serves one conversation at a time. Methods that only read the vocabulary are thread-safe."""

    def __init__(self, llama: Llama, context_tokens: int) -> None:
        self._llama = llama
        # Without `logits_all` it is unused, but would add 25 MB or more to each saved state.
        llama.scores = llama.scores[:1]
        self._vocabulary = llama_cpp.llama_model_get_vocab(llama.model)
        self._end_tokens = frozenset(
            token
            for token in range(llama.n_vocab())
            if llama_cpp.llama_vocab_is_eog(self._vocabulary, token)
        )
        max_context = llama.metadata.get(f"{llama.metadata['general.architecture']}.context_length")
        self.context_tokens = min(context_tokens, int(max_context or context_tokens))

    def generate(
        self, request: CompletionRequest, is_cancelled: Callable[[], bool]
    ) -> Iterator[GeneratedChunk]:
        """Generate until an end token, a limit, or cancellation; may raise `InvalidRequest`."""
        prompt, llama = request.prompt, self._llama
        remaining_tokens = self.context_tokens - len(prompt)
        if remaining_tokens <= 0:
            context_note = f"but the model's context has only {self.context_tokens}"
            message = f"the prompt has {len(prompt)} tokens, {context_note}"
            raise InvalidRequest(message, "exceed_context_size_error")
        decoder = self._make_detokenizer(request)
        max_tokens = min(request.max_tokens or remaining_tokens, remaining_tokens)
        processor, grammar = self._make_logits_processor(request), self._make_grammar(request)
        cached_tokens = self._decode_prompt(prompt, is_cancelled)
        if is_cancelled():
            return
        llama.set_seed(llama_cpp.LLAMA_DEFAULT_SEED if request.seed is None else request.seed)
        llama.last_n_tokens_size = request.repeat_last_n
        sampling = {name: getattr(request, name) for name in SamplingParameters.__struct_fields__}
        tokens = llama.generate(prompt, **sampling, logits_processor=processor, grammar=grammar)
        for token_count, token in enumerate(tokens, start=1):
            text = decoder.add_token(token)
            if decoder.has_ended:
                yield GeneratedChunk(text, "stop", cached_tokens, token_count)
                return
            if token_count == max_tokens:
                yield GeneratedChunk(text + decoder.flush(), "length", cached_tokens, token_count)
                return
            if text:
                yield GeneratedChunk(text)
            if is_cancelled():
                return

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        return list(self._llama.tokenize(text.encode(), add_bos=add_special, special=parse_special))

    def render_token(self, token: int, *, render_special: bool = False) -> bytes:
        """Return a token's bytes; control tokens have none unless `render_special` is set."""
        buffer_size = 64
        while True:
            buffer = ctypes.create_string_buffer(buffer_size)
            byte_count = llama_cpp.llama_token_to_piece(
                self._vocabulary, token, buffer, buffer_size, 0, render_special
            )
            if byte_count >= 0:
                return buffer.raw[:byte_count]
            buffer_size = -byte_count

    def save_state(self, path: Path) -> int:
        state = self._llama.save_state()
        with path.open("wb") as file:
            np.save(file, state.input_ids[: state.n_tokens])
            np.save(file, np.frombuffer(state.llama_state, np.uint8))
        return int(state.n_tokens)

    def restore_state(self, path: Path) -> int:
        """Load the KV state from a file; on failure, clear the state and raise `InvalidRequest`."""
        llama = self._llama
        try:
            with path.open("rb") as file:
                tokens, state_data = np.load(file), np.load(file).tobytes()
            input_ids = np.zeros_like(llama.input_ids)
            input_ids[: len(tokens)] = tokens
            state = LlamaState(
                input_ids=input_ids,
                scores=llama.scores[: len(tokens)],
                n_tokens=len(tokens),
                llama_state=state_data,
                llama_state_size=len(state_data),
                seed=llama_cpp.LLAMA_DEFAULT_SEED,
            )
            llama.load_state(state)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            llama.reset()
            raise InvalidRequest(f"{path.name} cannot be restored: {error}") from None
        return len(tokens)

    def erase_state(self) -> None:
        self._llama.reset()

    def _decode_prompt(self, prompt: list[int], is_cancelled: Callable[[], bool]) -> int:
        """Decode the prompt except its last batch; return how many of its tokens were cached."""
        cached_tokens = int(Llama.longest_token_prefix(self._llama.eval_tokens, prompt))
        for batch_end in range(cached_tokens + _BATCH_TOKENS, len(prompt), _BATCH_TOKENS):
            if is_cancelled():
                break
            next(self._llama.generate(prompt[:batch_end], temp=0))
        return min(cached_tokens, len(prompt) - 1)  # a cached last token is decoded again

    def _make_detokenizer(self, request: CompletionRequest) -> Detokenizer:
        # A control token has no text, so as a stop string it is matched by its id.
        token_by_stop_string = {word: self._find_control_token(word) for word in request.stop}
        preserved_ids = {self._find_control_token(word) for word in request.preserved_tokens}
        return Detokenizer(
            lambda token: self.render_token(token, render_special=token in preserved_ids),
            end_ids=self._end_tokens.union(
                token for token in token_by_stop_string.values() if token is not None
            ),
            stop=[word for word, token in token_by_stop_string.items() if token is None],
        )

    def _find_control_token(self, text: str) -> int | None:
        token_ids = self.tokenize(text, parse_special=True)
        return token_ids[0] if len(token_ids) == 1 and not self.render_token(token_ids[0]) else None

    def _make_logits_processor(self, request: CompletionRequest) -> LogitsProcessorList | None:
        logit_bias = request.logit_bias
        biases = dict.fromkeys(self._end_tokens, _BANNED_TOKEN_BIAS) if request.ignore_eos else {}
        for token, bias in logit_bias.items() if isinstance(logit_bias, dict) else logit_bias:
            value = _BANNED_TOKEN_BIAS if bias is False else float(bias)
            biases |= dict.fromkeys(self._find_biased_tokens(token), value)
        if not biases:
            return None
        tokens, bias_values = np.array(list(biases)), np.array(list(biases.values()), np.single)

        def add_biases(_: Any, logits: Any) -> Any:
            logits[tokens] += bias_values
            return logits

        return LogitsProcessorList([add_biases])

    def _find_biased_tokens(self, token_or_text: str | int) -> list[int]:
        try:
            token = int(token_or_text)
        except ValueError:
            return self.tokenize(str(token_or_text), parse_special=False)
        if not 0 <= token < self._llama.n_vocab():
            raise InvalidRequest(f"logit_bias contains {token}, which is not a token id")
        return [token]

    def _make_grammar(self, request: CompletionRequest) -> LlamaGrammar | None:
        if request.json_schema is not None:
            try:
                return LlamaGrammar.from_json_schema(json.dumps(request.json_schema))
            except (AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
                message = f"json_schema cannot be converted to a grammar: {error}"
                raise InvalidRequest(message) from None
        if request.grammar is None:
            return None
        grammar_bytes = request.grammar.encode()
        sampler = llama_cpp.llama_sampler_init_grammar(self._vocabulary, grammar_bytes, b"root")
        if not sampler:
            raise InvalidRequest("the grammar cannot be parsed; write GBNF with a rule named root")
        llama_cpp.llama_sampler_free(sampler)
        return LlamaGrammar.from_string(request.grammar)


class BindingsServer:
    def __init__(self, model: ServedModel, slots_folder: Path) -> None:
        self._model = model
        self._slots_folder = slots_folder
        self._executor = ThreadPoolExecutor(max_workers=1)

    def build_app(self) -> web.Application:
        middlewares = [_report_invalid_requests]
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=middlewares)
        app.router.add_get("/health", _get_health)
        app.router.add_get("/slots", self._get_slots)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/slots/0", self._post_slot)
        return app

    async def _run_in_thread(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    async def _get_slots(self, _: web.Request) -> web.Response:
        """Describe the only slot once the model is idle; a request to a hung model times out."""
        context_tokens = await self._run_in_thread(lambda: self._model.context_tokens)
        return web.json_response([{"id": 0, "n_ctx": context_tokens, "is_processing": False}])

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()

        def tokenize() -> list[int]:
            options = {name: body[name] for name in ("parse_special", "add_special")}
            tokens: list[int] = []
            for part in body["content"]:
                tokens += self._model.tokenize(part, **options) if isinstance(part, str) else [part]
            return tokens

        # In a thread, so that a long text does not delay other requests' chunks.
        return web.json_response({"tokens": await asyncio.to_thread(tokenize)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        data = b"".join(map(self._model.render_token, tokens))
        return web.json_response({"content": data.decode(errors="replace")})

    async def _post_slot(self, request: web.Request) -> web.Response:
        action = request.query["action"]
        if action == "erase":
            await self._run_in_thread(self._model.erase_state)
            return web.json_response({})
        path = self._slots_folder / (await request.json())["filename"]
        if path.parent != self._slots_folder:
            raise InvalidRequest("the file must be in the folder of saved slots")
        if action == "save":
            return web.json_response(
                {"n_saved": await self._run_in_thread(self._model.save_state, path)}
            )
        return web.json_response(
            {"n_restored": await self._run_in_thread(self._model.restore_state, path)}
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        completion_request = parse_request(await request.read())
        loop, chunk_queue = asyncio.get_running_loop(), asyncio.Queue[GeneratedChunk | None]()
        cancel_event = threading.Event()

        def generate() -> None:
            try:
                for chunk in self._model.generate(completion_request, cancel_event.is_set):
                    loop.call_soon_threadsafe(chunk_queue.put_nowait, chunk)
            finally:
                loop.call_soon_threadsafe(chunk_queue.put_nowait, None)

        generation = loop.run_in_executor(self._executor, generate)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            while (chunk := await chunk_queue.get()) is not None:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(_to_event(chunk, len(completion_request.prompt)))
            await generation  # raises the thread's exception, if any
        finally:
            cancel_event.set()
        return response


def _to_event(chunk: GeneratedChunk, prompt_tokens: int) -> bytes:
    body: dict[str, Any] = {"choices": [{"text": chunk.text, "finish_reason": chunk.finish_reason}]}
    if chunk.finish_reason is None:
        return b"data: " + msgspec.json.encode(body) + b"\n\n"
    body["usage"] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": chunk.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": chunk.cached_tokens},
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"


@web.middleware
async def _report_invalid_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except InvalidRequest as error:
        body = {"message": str(error), "type": error.error_type}
        return web.json_response({"error": body}, status=HTTPStatus.BAD_REQUEST)


async def _get_health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def main() -> None:
    options = json.loads(sys.argv[1])
    os.umask(0o077)  # saved slots contain conversations
    llama = Llama(
        options["model"],
        n_ctx=options["context_tokens"],
        n_batch=_BATCH_TOKENS,
        n_threads=options["threads"],
        n_threads_batch=options["threads"],
        n_gpu_layers=_ALL_LAYERS if options["gpu_layers"] == "auto" else int(options["gpu_layers"]),
    )
    llama.verbose = False  # otherwise it prints a few lines for every request
    logging.getLogger("llama-cpp-python").setLevel(logging.WARNING)
    model = ServedModel(llama, options["context_tokens"])
    app = BindingsServer(model, Path(options["slots_folder"])).build_app()
    web.run_app(
        app,
        path=options["socket"],
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_TIMEOUT_SECONDS,
    )


if __name__ == "__main__":
    main()
