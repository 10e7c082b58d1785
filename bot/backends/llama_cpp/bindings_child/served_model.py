"""Generate with one model in the bindings' `Llama`, and save and restore its KV state.

`Llama.generate` gives the tokens. `Llama.create_completion` would give text, but after a byte that
is no character it shows nothing until the end and loses others, and no control token shows in it.

Where `Llama` has no way, these are called of llama.cpp's C interface as the bindings export it:

llama_model_get_vocab        for the next three
llama_vocab_is_eog           several tokens may end a turn; `Llama` names one
llama_token_to_piece         `Llama.detokenize` drops tokens of more than 32 bytes
llama_sampler_init_grammar   `Llama` ignores a grammar that cannot be parsed
llama_sampler_free           ... what the check has made
"""

import ctypes
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import Llama, LlamaGrammar, LlamaState, LogitsProcessorList

from bot.backends.llama_cpp.bindings_child.completion_request import (
    CompletionRequest,
    InvalidRequest,
    PromptTooLong,
    Sampling,
)
from bot.backends.llama_cpp.bindings_child.detokenizer import Detokenizer
from bot.frozen_dataclass import frozen_dataclass

_BATCH_TOKENS = 128  # half a second on one core; a request is cancelled between two batches
_ALL_LAYERS = -1
_BANNED = -float("inf")


@frozen_dataclass
class GeneratedChunk:
    """A part of the generated text, or its end."""

    text: str
    reason: str | None = None
    """At the end: "stop" or "length"."""
    cached: int = 0
    """Prompt tokens that were not decoded again."""
    generated: int = 0
    """Tokens generated so far."""


class ServedModel:
    """One conversation at a time; what only reads the vocabulary may be called anywhere."""

    def __init__(self, llama: Llama, context_tokens: int) -> None:
        self._llama = llama
        # Unused without `logits_all`, but copied into each saved state: 25 MB or more.
        llama.scores = llama.scores[:1]
        self._vocabulary = llama_cpp.llama_model_get_vocab(llama.model)
        self._ends = frozenset(
            token
            for token in range(llama.n_vocab())
            if llama_cpp.llama_vocab_is_eog(self._vocabulary, token)
        )
        trained = llama.metadata.get(f"{llama.metadata['general.architecture']}.context_length")
        self.context_tokens = min(context_tokens, int(trained or context_tokens))

    def generate(
        self, request: CompletionRequest, is_cancelled: Callable[[], bool]
    ) -> Iterator[GeneratedChunk]:
        """Generate until an end, a limit, or until cancelled; raises `InvalidRequest`."""
        prompt, llama = request.prompt, self._llama
        left = self.context_tokens - len(prompt)
        if left <= 0:
            raise PromptTooLong(f"the prompt has {len(prompt)} tokens of {self.context_tokens}")
        detokenizer, limit = self._detokenizer(request), min(request.max_tokens or left, left)
        processor, grammar = self._logits_processor(request), self._grammar(request)
        cached = self._read_prompt(prompt, is_cancelled)
        if is_cancelled():
            return
        llama.set_seed(llama_cpp.LLAMA_DEFAULT_SEED if request.seed is None else request.seed)
        llama.last_n_tokens_size = request.repeat_last_n
        sampling = {name: getattr(request, name) for name in Sampling.__struct_fields__}
        tokens = llama.generate(prompt, **sampling, logits_processor=processor, grammar=grammar)
        for generated, token in enumerate(tokens, start=1):
            text = detokenizer.add(token)
            if detokenizer.ended:
                yield GeneratedChunk(text, "stop", cached, generated)
                return
            if generated == limit:
                yield GeneratedChunk(text + detokenizer.flush(), "length", cached, generated)
                return
            if text:
                yield GeneratedChunk(text)
            if is_cancelled():
                return

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Tokenize a text.

        Args:
            text: what to tokenize.
            parse_special: turn the text of control tokens into control tokens.
            add_special: add the tokens that the model expects around a prompt.
        """
        return list(self._llama.tokenize(text.encode(), add_bos=add_special, special=parse_special))

    def token_bytes(self, token: int, *, render_special: bool = False) -> bytes:
        """Return the bytes of a token; a control token has none unless `render_special`."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(
                self._vocabulary, token, buffer, size, 0, render_special
            )
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def save(self, path: Path) -> int:
        """Write the KV state to a file; return its number of tokens."""
        state = self._llama.save_state()
        with path.open("wb") as file:
            np.save(file, state.input_ids[: state.n_tokens])
            np.save(file, np.frombuffer(state.llama_state, np.uint8))
        return int(state.n_tokens)

    def restore(self, path: Path) -> int:
        """Replace the KV state by that of a file; return its number of tokens.

        Raises:
            InvalidRequest: there is no such file, or it does not fit. The state is empty then.
        """
        llama = self._llama
        try:
            with path.open("rb") as file:
                tokens, data = np.load(file), np.load(file).tobytes()
            ids = np.zeros_like(llama.input_ids)
            ids[: len(tokens)] = tokens
            state = LlamaState(
                input_ids=ids,
                scores=llama.scores[: len(tokens)],
                n_tokens=len(tokens),
                llama_state=data,
                llama_state_size=len(data),
                seed=llama_cpp.LLAMA_DEFAULT_SEED,
            )
            llama.load_state(state)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            llama.reset()
            raise InvalidRequest(f"{path.name} cannot be restored: {error}") from None
        return len(tokens)

    def erase(self) -> None:
        """Empty the KV state."""
        self._llama.reset()

    def _read_prompt(self, prompt: list[int], is_cancelled: Callable[[], bool]) -> int:
        """Decode a prompt but for its last batch; return how many tokens were decoded already.

        `Llama.generate` alone cannot be cancelled before its first token.
        """
        known = int(Llama.longest_token_prefix(self._llama.eval_tokens, prompt))
        for end in range(known + _BATCH_TOKENS, len(prompt), _BATCH_TOKENS):
            if is_cancelled():
                break
            next(self._llama.generate(prompt[:end], temp=0))
        return min(known, len(prompt) - 1)  # the last one is decoded again where it was known

    def _detokenizer(self, request: CompletionRequest) -> Detokenizer:
        # A stop that is a control token ends the generation by its id, as it has no text.
        stops = {word: self._control_token(word) for word in request.stop}
        preserved = {self._control_token(word) for word in request.preserved_tokens}
        return Detokenizer(
            lambda token: self.token_bytes(token, render_special=token in preserved),
            ends=self._ends.union(token for token in stops.values() if token is not None),
            stop=[word for word, token in stops.items() if token is None],
        )

    def _control_token(self, word: str) -> int | None:
        """Return the control token with this text, if there is one."""
        found = self.tokenize(word, parse_special=True)
        return found[0] if len(found) == 1 and not self.token_bytes(found[0]) else None

    def _logits_processor(self, request: CompletionRequest) -> LogitsProcessorList | None:
        """Return what adds the request's biases to the logits of single tokens."""
        given = request.logit_bias
        biases = dict.fromkeys(self._ends, _BANNED) if request.ignore_eos else {}
        for name, bias in given.items() if isinstance(given, dict) else given:
            value = _BANNED if bias is False else float(bias)
            biases |= dict.fromkeys(self._biased_tokens(name), value)
        if not biases:
            return None
        tokens, values = np.array(list(biases)), np.array(list(biases.values()), np.single)

        def add(_: Any, logits: Any) -> Any:
            logits[tokens] += values
            return logits

        return LogitsProcessorList([add])

    def _biased_tokens(self, name: str | int) -> list[int]:
        try:
            token = int(name)
        except ValueError:
            return self.tokenize(str(name), parse_special=False)
        if not 0 <= token < self._llama.n_vocab():
            raise InvalidRequest(f"logit_bias holds {token}, which is no token")
        return [token]

    def _grammar(self, request: CompletionRequest) -> LlamaGrammar | None:
        if request.json_schema is not None:
            try:
                return LlamaGrammar.from_json_schema(json.dumps(request.json_schema))
            except (AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
                message = f"json_schema cannot be converted to a grammar: {error}"
                raise InvalidRequest(message) from None
        if request.grammar is None:
            return None
        text = request.grammar.encode()
        sampler = llama_cpp.llama_sampler_init_grammar(self._vocabulary, text, b"root")
        if not sampler:
            raise InvalidRequest("the grammar cannot be parsed; GBNF with a rule root is needed")
        llama_cpp.llama_sampler_free(sampler)
        return LlamaGrammar.from_string(request.grammar)


def load_model(path: Path, *, context_tokens: int, threads: int, gpu_layers: str) -> ServedModel:
    """Load a model; raises `ValueError` when that fails, and prints why."""
    llama = Llama(
        str(path),
        n_ctx=context_tokens,
        n_batch=_BATCH_TOKENS,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=_ALL_LAYERS if gpu_layers == "auto" else int(gpu_layers),
    )
    llama.verbose = False  # it prints a few lines for every request
    logging.getLogger("llama-cpp-python").setLevel(logging.WARNING)
    return ServedModel(llama, context_tokens)
