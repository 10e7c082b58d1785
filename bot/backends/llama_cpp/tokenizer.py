"""Tokenize a prompt for a local model, so that no text from people becomes a control token.

The template's spans are tokenized with control tokens, people's spans without
(docs/sources.md#llama-cpp). Some models list their markers as ordinary added tokens, which any text
is tokenized to: where people's text yields one that the template uses, its text is broken up and
tokenized again.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from bot.backends.llama_cpp.engine import Engine
from bot.backends.model_files.gguf import SpecialTokens
from bot.chat.prompt import PromptToken
from bot.templates.control_tokens import TextSpan, break_control_tokens
from bot.value_class import value_class

_MAX_CACHED_IDS = 1_000_000  # 4 MB
_MAX_CACHED_TEXT_CHARS = 20_000


class _TextToTokenize(NamedTuple):
    """A text, and how to tokenize it."""

    text: str
    parse_special: bool
    """With control tokens."""
    joined: bool
    """Without the space that the tokenizer may put in front."""


class Tokenizer:
    """Tokenize by the engine, with a cache: in a conversation only the newest spans are new.

    All methods raise `EngineFailed`.
    """

    def __init__(self, engine: Engine, tokens: SpecialTokens) -> None:
        self._engine = engine
        self._tokens = tokens
        self._traits: _TokenizerTraits | None = None
        self._cache: dict[_TextToTokenize, array[int]] = {}
        self._cached_ids = 0

    async def ids(self, spans: Sequence[TextSpan]) -> list[int]:
        """Return the ids of a whole prompt, after the beginning-of-text token if there is one."""
        return [token for token, _ in await self._tokens_of_prompt(spans)]

    async def text(self, spans: Sequence[TextSpan]) -> str:
        """Return the prompt as text for an engine that tokenizes it whole, with control tokens.

        In people's text every word is broken up that could become a control token.
        """
        traits = await self._detect_traits()
        trusted = "".join(span.text for span in spans if span.trusted)
        used = (word for word in self._tokens.added.values() if word.strip() and word in trusted)
        words = [*self._tokens.control.values(), *used]
        text = "".join(
            span.text if span.trusted else break_control_tokens(span.text, words) for span in spans
        )
        for token in traits.prefix_ids:  # the engine adds it
            text = text.removeprefix(self._tokens.control.get(token, ""))
        return text

    async def explain(self, spans: Sequence[TextSpan]) -> list[PromptToken]:
        """Return the ids with their texts, and which of them are control tokens."""
        found = await self._tokens_of_prompt(spans)
        texts = await self._texts({token for token, _ in found})
        return [
            PromptToken(token, texts[token], token in self._tokens.control, trusted)
            for token, trusted in found
        ]

    async def _tokens_of_prompt(self, spans: Sequence[TextSpan]) -> list[tuple[int, bool]]:
        """Return the ids of a whole prompt, each with whether its span is trusted."""
        traits = await self._detect_traits()
        parts = await self._tokenize_spans(spans, traits)
        found = [
            (token, span.trusted) for part, span in zip(parts, spans, strict=True) for token in part
        ]
        if [token for token, _ in found[: len(traits.prefix_ids)]] == traits.prefix_ids:
            return found
        return [*((token, True) for token in traits.prefix_ids), *found]

    async def _tokenize_spans(
        self, spans: Sequence[TextSpan], traits: "_TokenizerTraits"
    ) -> list[Sequence[int]]:
        joined = [index > 0 and bool(traits.separator_ids) for index in range(len(spans))]
        trusted = await self._tokenize(
            [
                _TextToTokenize(each.text, True, joined[index])
                for index, each in enumerate(spans)
                if each.trusted
            ],
            traits,
        )
        markers = {token for part in trusted for token in part if token in self._tokens.added}
        parts: list[Sequence[int]] = []
        untrusted: list[_TextToTokenize] = []
        next_trusted = iter(trusted)
        for index, span in enumerate(spans):
            if span.trusted:
                parts.append(next(next_trusted))
                continue
            after_control = index > 0 and bool(parts[-1]) and parts[-1][-1] in self._tokens.control
            untrusted.append(_TextToTokenize(span.text, False, joined[index] and not after_control))
            parts.append(())
        tokenized = iter(await self._tokenize_untrusted(untrusted, markers, traits))
        return [
            part if span.trusted else next(tokenized)
            for part, span in zip(parts, spans, strict=True)
        ]

    async def _tokenize_untrusted(
        self, wanted: Sequence[_TextToTokenize], markers: set[int], traits: "_TokenizerTraits"
    ) -> list[Sequence[int]]:
        """Tokenize people's texts; no id is a control token or one of `markers`."""
        tokenized = await self._tokenize(wanted, traits)
        forbidden = markers | self._tokens.control.keys()
        names = {**self._tokens.control, **self._tokens.added}
        safe: list[Sequence[int]] = []
        for each, ids in zip(wanted, tokenized, strict=True):
            found = forbidden.intersection(ids)
            if not found:
                safe.append(ids)
                continue
            broken = break_control_tokens(each.text, [names[token] for token in found])
            (again,) = await self._tokenize([each._replace(text=broken)], traits)
            safe.append([token for token in again if token not in forbidden])
        return safe

    async def _tokenize(
        self, wanted: Sequence[_TextToTokenize], traits: "_TokenizerTraits"
    ) -> list[Sequence[int]]:
        cached = {each: self._cache[each] for each in wanted if each in self._cache}
        unknown = list(dict.fromkeys(each for each in wanted if each not in cached))
        fresh: dict[_TextToTokenize, array[int]] = {}
        for parse_special in (True, False):
            asked = [each for each in unknown if each.parse_special is parse_special]
            texts = [traits.separator + each.text if each.joined else each.text for each in asked]
            tokenized = await self._engine.tokenize(texts, parse_special=parse_special)
            for each, ids in zip(asked, tokenized, strict=True):
                fresh[each] = array("i", ids[len(traits.separator_ids) :] if each.joined else ids)
        self._store(fresh)
        cached |= fresh
        return [cached[each] for each in wanted]

    def _store(self, fresh: dict[_TextToTokenize, "array[int]"]) -> None:
        for each, ids in fresh.items():
            if len(each.text) <= _MAX_CACHED_TEXT_CHARS and each not in self._cache:
                self._cache[each] = ids
                self._cached_ids += len(ids)
        while self._cached_ids > _MAX_CACHED_IDS:
            oldest = next(iter(self._cache))
            self._cached_ids -= len(self._cache.pop(oldest))

    def clear(self) -> None:
        """Drop the texts that were tokenized, whoever wrote them."""
        self._cache.clear()
        self._cached_ids = 0

    async def _detect_traits(self) -> "_TokenizerTraits":
        """Detect once what the model's tokenizer adds to a text."""
        if self._traits is None:
            plain, newline = await self._engine.tokenize(["x", "\n"], parse_special=False)
            (whole,) = await self._engine.tokenize(["x"], parse_special=False, add_special=True)
            texts = await self._texts(set(plain))
            adds_space = bool(plain) and texts[plain[0]].startswith(" ")
            adds_prefix = len(whole) > len(plain) and whole[1 : 1 + len(plain)] == plain
            self._traits = _TokenizerTraits(
                separator="\n" if adds_space else "",
                separator_ids=newline if adds_space else [],
                prefix_ids=whole[:1] if adds_prefix else [],
            )
        return self._traits

    async def _texts(self, ids: set[int]) -> dict[int, str]:
        """Return the text of each id."""
        known = {**self._tokens.control, **self._tokens.added}
        texts: dict[int, str] = {}
        for token in ids:
            if token in known:
                texts[token] = known[token]
            else:
                texts[token] = await self._engine.token_text(token)
        return texts


@value_class
class _TokenizerTraits:
    """What a tokenizer adds to a text.

    A SentencePiece model puts a space before any text, also in the middle of a prompt. There a
    newline is put first, which it never merges with what follows, and its ids are removed again.
    """

    separator: str
    separator_ids: list[int]
    prefix_ids: list[int]
    """The beginning-of-text token, or nothing."""
