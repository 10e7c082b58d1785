"""Build llama.cpp's chain of samplers from the parameters of a request."""

import json
import secrets

import llama_cpp.llama_cpp as native
from llama_cpp.llama_grammar import json_schema_to_gbnf
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.completion_request import (
    CompletionRequest,
    InvalidRequest,
)
from bot.backends.llama_cpp.bindings_child.native import Vocabulary
from bot.backends.llama_cpp.bindings_child.slots import Sampler

_BANNED = -float("inf")
_MIN_KEEP = 1  # candidates that no sampler removes


class SamplerChain(Sampler):
    """The samplers of one generation, in the order of llama.cpp's server."""

    def __init__(self, context: object, vocabulary: Vocabulary, request: CompletionRequest) -> None:
        """Raises `InvalidRequest` for a grammar or a schema that llama.cpp cannot parse."""
        self._context = context
        self._vocabulary = vocabulary
        self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        try:
            self._add_constraints(request)
        except InvalidRequest:
            self.close()
            raise
        self._add_selection(request)

    @override
    def sample(self, row: int) -> int:
        return int(native.llama_sampler_sample(self._chain, self._context, row))

    @override
    def close(self) -> None:
        if self._chain is not None:
            native.llama_sampler_free(self._chain)
            self._chain = None

    def _add_constraints(self, request: CompletionRequest) -> None:
        """Add the samplers that decide which tokens are allowed."""
        biases = self._biases(request)
        if biases:
            array = (native.llama_logit_bias * len(biases))(*biases)
            size = self._vocabulary.size
            self._add(native.llama_sampler_init_logit_bias(size, len(biases), array))
        grammar = _grammar(request)
        if grammar is not None:
            text = grammar.encode()
            handle = self._vocabulary.handle
            sampler = native.llama_sampler_init_grammar(handle, text, b"root")
            if not sampler:
                raise InvalidRequest(
                    "the grammar cannot be parsed; it must be GBNF with a rule named root"
                )
            self._add(sampler)

    def _biases(self, request: CompletionRequest) -> list[tuple[int, float]]:
        """Return what is added to the logits of single tokens."""
        given = request.logit_bias
        found: list[tuple[int, float]] = []
        for name, bias in given.items() if isinstance(given, dict) else given:
            # llama.cpp's `false` bans a token.
            value = _BANNED if bias is False else float(bias)
            found += [(token, value) for token in self._token_ids(name)]
        if request.ignore_eos:
            found += [(token, _BANNED) for token in self._vocabulary.ends]
        return found

    def _token_ids(self, name: str | int) -> list[int]:
        try:
            token = int(name)
        except ValueError:
            return self._vocabulary.tokenize(str(name), parse_special=False)
        if not 0 <= token < self._vocabulary.size:
            raise InvalidRequest(f"logit_bias holds {token}, which is no token", "logit_bias")
        return [token]

    def _add_selection(self, request: CompletionRequest) -> None:
        """Add the samplers that select one of the allowed tokens."""
        self._add(self._penalties(request))
        if request.temperature <= 0:
            self._add(native.llama_sampler_init_greedy())
            return
        self._add(native.llama_sampler_init_top_n_sigma(request.top_n_sigma))
        self._add(native.llama_sampler_init_top_k(request.top_k))
        self._add(native.llama_sampler_init_typical(request.typical_p, _MIN_KEEP))
        self._add(native.llama_sampler_init_top_p(request.top_p, _MIN_KEEP))
        self._add(native.llama_sampler_init_min_p(request.min_p, _MIN_KEEP))
        seed = secrets.randbits(32) if request.seed is None else request.seed & 0xFFFFFFFF
        xtc = (request.xtc_probability, request.xtc_threshold, _MIN_KEEP, seed)
        self._add(native.llama_sampler_init_xtc(*xtc))
        temperature = (request.temperature, request.dynatemp_range, request.dynatemp_exponent)
        self._add(native.llama_sampler_init_temp_ext(*temperature))
        self._add(native.llama_sampler_init_dist(seed))

    def _penalties(self, request: CompletionRequest) -> object:
        """Make the repetition penalties, which count the end of the prompt too."""
        last = request.repeat_last_n
        if last < 0:
            last = native.llama_n_ctx_seq(self._context)
        sampler = native.llama_sampler_init_penalties(
            self._vocabulary.size,
            last,
            request.repeat_penalty,
            request.frequency_penalty,
            request.presence_penalty,
        )
        for token in request.prompt[-last:] if last else ():
            native.llama_sampler_accept(sampler, token)
        return sampler

    def _add(self, sampler: object) -> None:
        native.llama_sampler_chain_add(self._chain, sampler)


def _grammar(request: CompletionRequest) -> str | None:
    if request.json_schema is None:
        return request.grammar
    try:
        return str(json_schema_to_gbnf(json.dumps(request.json_schema)))
    except (AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"json_schema cannot be converted to a grammar: {error}") from None
