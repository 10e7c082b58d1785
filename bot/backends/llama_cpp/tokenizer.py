"""Tokenize prompts for a local model, so that people's text never yields control tokens.

The template's spans may contain control tokens, people's may not (docs/sources.md). Where people's
text yields a marker that the model treats as an ordinary token, the marker is split.
"""

from collections.abc import Sequence

from bot.backends.llama_cpp.engine import Engine
from bot.backends.model_files.gguf import SpecialTokens
from bot.chat.prompt import PromptToken
from bot.templates.control_tokens import TextSpan, break_control_tokens

_SEPARATOR = "\n"  # never merged with what follows it


class Tokenizer:
    """Tokenizes with the engine; all methods raise `EngineFailed`."""

    def __init__(self, engine: Engine, tokens: SpecialTokens) -> None:
        self._engine = engine
        self._tokens = tokens
        self._added_ids: tuple[list[int], list[int]] | None = None

    async def ids(self, spans: Sequence[TextSpan]) -> list[int]:
        return [token for token, _ in await self._tokens_of_prompt(spans)]

    async def text(self, spans: Sequence[TextSpan]) -> str:
        """Return the prompt for an engine that parses control tokens; people's are broken up."""
        prefix_ids, _ = await self._detect_added_ids()
        trusted = "".join(span.text for span in spans if span.trusted)
        used = (word for word in self._tokens.added.values() if word.strip() and word in trusted)
        words = [*self._tokens.control.values(), *used]
        text = "".join(
            span.text if span.trusted else break_control_tokens(span.text, words) for span in spans
        )
        for token in prefix_ids:  # the engine adds it
            text = text.removeprefix(self._tokens.control.get(token, ""))
        return text

    async def explain(self, spans: Sequence[TextSpan]) -> list[PromptToken]:
        """Return the prompt's tokens with their texts, and which are control tokens."""
        found = await self._tokens_of_prompt(spans)
        texts = await self._texts({token for token, _ in found})
        return [
            PromptToken(token, texts[token], token in self._tokens.control, trusted)
            for token, trusted in found
        ]

    async def _tokens_of_prompt(self, spans: Sequence[TextSpan]) -> list[tuple[int, bool]]:
        prefix_ids, _ = await self._detect_added_ids()
        parts = await self._tokenize_spans(spans)
        found = [
            (token, span.trusted) for part, span in zip(parts, spans, strict=True) for token in part
        ]
        if [token for token, _ in found[: len(prefix_ids)]] == prefix_ids:
            return found
        return [*((token, True) for token in prefix_ids), *found]

    async def _tokenize_spans(self, spans: Sequence[TextSpan]) -> Sequence[list[int]]:
        trusted = [at for at, span in enumerate(spans) if span.trusted]
        others = [at for at, span in enumerate(spans) if not span.trusted]
        written = [(spans[at].text, at > 0) for at in trusted]
        parts = dict(zip(trusted, await self._tokenize(written, parse_special=True), strict=True))
        markers = {
            token for part in parts.values() for token in part if token in self._tokens.added
        }
        said = []
        for at in others:
            before = parts.get(at - 1, [])
            after_control = bool(before) and before[-1] in self._tokens.control
            said.append((spans[at].text, at > 0 and not after_control))
        parts |= zip(others, await self._tokenize_untrusted(said, markers), strict=True)
        return [parts[at] for at in range(len(spans))]

    async def _tokenize_untrusted(
        self, said: Sequence[tuple[str, bool]], markers: set[int]
    ) -> list[list[int]]:
        """Tokenize people's texts without control tokens or any of `markers`."""
        forbidden = markers | self._tokens.control.keys()
        names = {**self._tokens.control, **self._tokens.added}
        tokenized = await self._tokenize(said, parse_special=False)
        for number, (text, joined) in enumerate(said):
            if found := forbidden.intersection(tokenized[number]):
                broken = break_control_tokens(text, [names[token] for token in found])
                (again,) = await self._tokenize([(broken, joined)], parse_special=False)
                tokenized[number] = [token for token in again if token not in forbidden]
        return tokenized

    async def _tokenize(
        self, texts: Sequence[tuple[str, bool]], *, parse_special: bool
    ) -> list[list[int]]:
        """Tokenize texts without the leading space; each says whether it continues another."""
        _, separator_ids = await self._detect_added_ids()
        size = len(separator_ids)
        given = [_SEPARATOR + text if joined and size else text for text, joined in texts]
        tokenized = await self._engine.tokenize(given, parse_special=parse_special)
        return [
            ids[size:] if joined else ids for ids, (_, joined) in zip(tokenized, texts, strict=True)
        ]

    async def _detect_added_ids(self) -> tuple[list[int], list[int]]:
        """Detect once which tokens the model's tokenizer adds to a text.

        Returns the beginning-of-text token, if any, and the ids of a separator, if needed: a
        SentencePiece model puts a space before any text, even in the middle of a prompt. There the
        separator is put in front, and its ids are then removed.
        """
        if self._added_ids is None:
            plain, separator = await self._engine.tokenize(["x", _SEPARATOR], parse_special=False)
            (whole,) = await self._engine.tokenize(["x"], parse_special=False, add_special=True)
            texts = await self._texts(set(plain))
            adds_space = bool(plain) and texts[plain[0]].startswith(" ")
            adds_prefix = len(whole) > len(plain) and whole[1 : 1 + len(plain)] == plain
            self._added_ids = whole[:1] if adds_prefix else [], separator if adds_space else []
        return self._added_ids

    async def _texts(self, ids: set[int]) -> dict[int, str]:
        known = {**self._tokens.control, **self._tokens.added}
        texts: dict[int, str] = {}
        for token in ids:
            if token in known:
                texts[token] = known[token]
            else:
                texts[token] = await self._engine.token_text(token)
        return texts
