"""Turn a prompt into the token ids of a local model, so that no text from people becomes control.

The template's pieces are read with control tokens, people's pieces without (SEEDS.md, 2-i). Some
models list their markers as ordinary added tokens, which are read from any text: where people's
text comes out as one of those that the template uses, the word is broken and read again.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bot.backends.llama_cpp.engines.engine import Engine
from bot.backends.model_files.gguf import SpecialTokens
from bot.chat.prompt import PromptToken
from bot.templates.control_tokens import break_control_tokens
from bot.templates.text_spans import TextSpan

_MOST_KEPT_IDS = 1_000_000  # 4 MB
_KEPT_IN_TEXTS_UP_TO = 20_000  # characters


class _Reading(NamedTuple):
    """A text, and how to read it."""

    text: str
    special: bool  # with control tokens
    joined: bool  # without the space that the tokenizer may put in front


class Tokenizer:
    """Asks the engine, and remembers: in a conversation only the newest pieces are unknown.

    All raise `EngineFailed`.
    """

    def __init__(self, engine: Engine, tokens: SpecialTokens) -> None:
        self._engine = engine
        self._tokens = tokens
        self._habits: _Habits | None = None
        self._kept: dict[_Reading, array[int]] = {}
        self._kept_ids = 0

    async def ids(self, pieces: Sequence[TextSpan]) -> list[int]:
        """The ids of a whole prompt, with the beginning that the model expects."""
        habits = await self._learn()
        ids = [token for part in await self._parts(pieces, habits) for token in part]
        if habits.beginning and ids[: len(habits.beginning)] != habits.beginning:
            return [*habits.beginning, *ids]
        return ids

    async def text(self, pieces: Sequence[TextSpan]) -> str:
        """The same prompt for an engine that reads it in one go, control tokens everywhere.

        Every word that could become one is broken in people's text.
        """
        habits = await self._learn()
        ours = "".join(piece.text for piece in pieces if piece.trusted)
        used = (word for word in self._tokens.added.values() if word.strip() and word in ours)
        words = [*self._tokens.control.values(), *used]
        text = "".join(
            piece.text if piece.trusted else break_control_tokens(piece.text, words)
            for piece in pieces
        )
        for token in habits.beginning:  # the engine puts it in front by itself
            text = text.removeprefix(self._tokens.control.get(token, ""))
        return text

    async def explain(self, pieces: Sequence[TextSpan]) -> list[PromptToken]:
        """The same ids with what they stand for, and which of them are control tokens."""
        habits = await self._learn()
        parts = await self._parts(pieces, habits)
        flat = [
            (token, piece.trusted)
            for part, piece in zip(parts, pieces, strict=True)
            for token in part
        ]
        begun = [token for token, _ in flat[: len(habits.beginning)]] == habits.beginning
        if not begun:
            flat = [*((token, True) for token in habits.beginning), *flat]
        texts = await self._texts({token for token, _ in flat})
        return [
            PromptToken(token, texts[token], token in self._tokens.control, trusted)
            for token, trusted in flat
        ]

    async def _parts(self, pieces: Sequence[TextSpan], habits: "_Habits") -> list[Sequence[int]]:
        joined = [index > 0 and bool(habits.lead) for index in range(len(pieces))]
        ours = await self._read(
            [
                _Reading(each.text, True, joined[index])
                for index, each in enumerate(pieces)
                if each.trusted
            ],
            habits,
        )
        marks = {token for part in ours for token in part if token in self._tokens.added}
        parts: list[Sequence[int]] = []
        theirs: list[_Reading] = []
        ours_left = iter(ours)
        for index, piece in enumerate(pieces):
            if piece.trusted:
                parts.append(next(ours_left))
                continue
            after_control = index > 0 and bool(parts[-1]) and parts[-1][-1] in self._tokens.control
            theirs.append(_Reading(piece.text, False, joined[index] and not after_control))
            parts.append(())
        read = iter(await self._read_safely(theirs, marks, habits))
        return [
            part if piece.trusted else next(read) for part, piece in zip(parts, pieces, strict=True)
        ]

    async def _read_safely(
        self, wanted: Sequence[_Reading], marks: set[int], habits: "_Habits"
    ) -> list[Sequence[int]]:
        """Read people's texts; none of the ids is a control token or one of `marks`."""
        read = await self._read(wanted, habits)
        forbidden = marks | self._tokens.control.keys()
        names = {**self._tokens.control, **self._tokens.added}
        safe: list[Sequence[int]] = []
        for each, ids in zip(wanted, read, strict=True):
            found = forbidden.intersection(ids)
            if not found:
                safe.append(ids)
                continue
            broken = break_control_tokens(each.text, [names[token] for token in found])
            (anew,) = await self._read([each._replace(text=broken)], habits)
            safe.append([token for token in anew if token not in forbidden])
        return safe

    async def _read(self, wanted: Sequence[_Reading], habits: "_Habits") -> list[Sequence[int]]:
        kept = {each: self._kept[each] for each in wanted if each in self._kept}
        unknown = list(dict.fromkeys(each for each in wanted if each not in kept))
        fresh: dict[_Reading, array[int]] = {}
        for special in (True, False):
            asked = [each for each in unknown if each.special is special]
            texts = [habits.lead_text + each.text if each.joined else each.text for each in asked]
            read = await self._engine.tokenize(texts, special=special)
            for each, ids in zip(asked, read, strict=True):
                fresh[each] = array("i", ids[len(habits.lead) :] if each.joined else ids)
        self._keep(fresh)
        kept |= fresh
        return [kept[each] for each in wanted]

    def _keep(self, fresh: dict[_Reading, "array[int]"]) -> None:
        for each, ids in fresh.items():
            if len(each.text) <= _KEPT_IN_TEXTS_UP_TO and each not in self._kept:
                self._kept[each] = ids
                self._kept_ids += len(ids)
        while self._kept_ids > _MOST_KEPT_IDS:
            oldest = next(iter(self._kept))
            self._kept_ids -= len(self._kept.pop(oldest))

    async def _learn(self) -> "_Habits":
        """Find out once what the model's tokenizer does by itself."""
        if self._habits is None:
            plain, newline = await self._engine.tokenize(["x", "\n"], special=False)
            (whole,) = await self._engine.tokenize(["x"], special=False, begun=True)
            texts = await self._texts(set(plain))
            adds_space = bool(plain) and texts[plain[0]].startswith(" ")
            begins = len(whole) > len(plain) and whole[1 : 1 + len(plain)] == plain
            self._habits = _Habits(
                lead_text="\n" if adds_space else "",
                lead=newline if adds_space else [],
                beginning=whole[:1] if begins else [],
            )
        return self._habits

    async def _texts(self, ids: set[int]) -> dict[int, str]:
        """What each id stands for."""
        known = {**self._tokens.control, **self._tokens.added}
        texts: dict[int, str] = {}
        for token in ids:
            if token in known:
                texts[token] = known[token]
            else:
                texts[token] = await self._engine.text_of(token)
        return texts


@dataclass(frozen=True, slots=True)
class _Habits:
    """What a tokenizer adds by itself.

    A SentencePiece model puts a space before any text, also in the middle of a prompt. There a
    newline goes first, which it never joins with what follows, and `lead` is taken off again.
    """

    lead_text: str
    lead: list[int]
    beginning: list[int]  # the token that every prompt begins with
