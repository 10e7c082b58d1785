"""llama.cpp's samplers: what a preset says about the choice of each token, as a chain."""

import json
import secrets

import llama_cpp.llama_cpp as native
from llama_cpp.llama_grammar import json_schema_to_gbnf
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.asking import Question, Refused
from bot.backends.llama_cpp.bindings_child.native import Vocabulary
from bot.backends.llama_cpp.bindings_child.slots import Sampler

_FORBIDDEN = -float("inf")
_AT_LEAST = 1  # tokens that no sampler may take away


class Chain(Sampler):
    """The samplers of one answer, in the order in which llama.cpp's server has them."""

    def __init__(self, context: object, vocabulary: Vocabulary, question: Question) -> None:
        """Raise Refused for a grammar or a schema that llama.cpp does not understand."""
        self._context = context
        self._vocabulary = vocabulary
        self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        try:
            self._add_limits(question)
        except Refused:
            self.close()
            raise
        self._add_choice(question)

    @override
    def sample(self, row: int) -> int:
        return int(native.llama_sampler_sample(self._chain, self._context, row))

    @override
    def close(self) -> None:
        if self._chain is not None:
            native.llama_sampler_free(self._chain)
            self._chain = None

    def _add_limits(self, question: Question) -> None:
        """What may be chosen at all."""
        biases = self._biases(question)
        if biases:
            array = (native.llama_logit_bias * len(biases))(*biases)
            size = self._vocabulary.size
            self._add(native.llama_sampler_init_logit_bias(size, len(biases), array))
        grammar = _grammar(question)
        if grammar is not None:
            text = grammar.encode()
            handle = self._vocabulary.handle
            sampler = native.llama_sampler_init_grammar(handle, text, b"root")
            if not sampler:
                raise Refused("the grammar cannot be read; is it GBNF with a rule named root?")
            self._add(sampler)

    def _biases(self, question: Question) -> list[tuple[int, float]]:
        """What is added to the scores of single tokens."""
        given = question.logit_bias
        found: list[tuple[int, float]] = []
        for name, bias in given.items() if isinstance(given, dict) else given:
            # llama.cpp's `false` forbids a token.
            value = _FORBIDDEN if bias is False else float(bias)
            found += [(token, value) for token in self._named(name)]
        if question.ignore_eos:
            found += [(token, _FORBIDDEN) for token in self._vocabulary.ends]
        return found

    def _named(self, name: str | int) -> list[int]:
        try:
            token = int(name)
        except ValueError:
            return self._vocabulary.tokens(str(name), special=False)
        if not 0 <= token < self._vocabulary.size:
            raise Refused(f"logit_bias holds {token}, which is no token", "logit_bias")
        return [token]

    def _add_choice(self, question: Question) -> None:
        """How one is chosen among those."""
        self._add(self._penalties(question))
        if question.temperature <= 0:
            self._add(native.llama_sampler_init_greedy())
            return
        self._add(native.llama_sampler_init_top_n_sigma(question.top_n_sigma))
        self._add(native.llama_sampler_init_top_k(question.top_k))
        self._add(native.llama_sampler_init_typical(question.typical_p, _AT_LEAST))
        self._add(native.llama_sampler_init_top_p(question.top_p, _AT_LEAST))
        self._add(native.llama_sampler_init_min_p(question.min_p, _AT_LEAST))
        seed = secrets.randbits(32) if question.seed is None else question.seed & 0xFFFFFFFF
        xtc = (question.xtc_probability, question.xtc_threshold, _AT_LEAST, seed)
        self._add(native.llama_sampler_init_xtc(*xtc))
        warmth = (question.temperature, question.dynatemp_range, question.dynatemp_exponent)
        self._add(native.llama_sampler_init_temp_ext(*warmth))
        self._add(native.llama_sampler_init_dist(seed))

    def _penalties(self, question: Question) -> object:
        """Penalties for what was said lately, the prompt's end included."""
        last = question.repeat_last_n
        if last < 0:
            last = native.llama_n_ctx_seq(self._context)
        sampler = native.llama_sampler_init_penalties(
            self._vocabulary.size,
            last,
            question.repeat_penalty,
            question.frequency_penalty,
            question.presence_penalty,
        )
        for token in question.prompt[-last:] if last else ():
            native.llama_sampler_accept(sampler, token)
        return sampler

    def _add(self, sampler: object) -> None:
        native.llama_sampler_chain_add(self._chain, sampler)


def _grammar(question: Question) -> str | None:
    if question.json_schema is None:
        return question.grammar
    try:
        return str(json_schema_to_gbnf(json.dumps(question.json_schema)))
    except (AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Refused(f"json_schema has what no grammar can say: {error}") from None
