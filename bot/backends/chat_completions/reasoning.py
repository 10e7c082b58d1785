"""Tell what a reasoning model thinks from what it says: only the latter is for the reader.

Each family has marks of its own around its thoughts. They count where an answer begins, before any
word of it: a model that explains the mark <think> does not think. Some templates write the opening
mark themselves, so that the answer begins in the middle of a thought.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bot.backends.chat_completions.stop_strings import StopStringFilter
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.text_spans import TextSpan


@dataclass(frozen=True, slots=True)
class _Family:
    """Marks as the models' own templates and llama.cpp's parsers have them."""

    opens: tuple[str, ...]
    closes: str
    around: tuple[str, ...] = ()  # what stands around the answer itself and says nothing
    known_by: tuple[str, ...] = ()  # words of such a model; none: its marks
    channels: bool = False  # every part of an answer is marked, so thoughts may come anywhere


_FAMILIES = (
    _Family(("<think>",), "</think>"),  # DeepSeek-R1, Qwen3, QwQ, GLM, SmolLM3, Kimi-K2, MiniMax
    _Family(
        ("<think>",), "</think>", ("<answer>", "</answer>"), ("<think>", "<answer>")
    ),  # Hunyuan
    _Family(("<thinking>",), "</thinking>"),
    _Family(("<thought>",), "</thought>"),  # EXAONE Deep
    _Family(("<Thought>",), "</Thought>", ("<Output>", "</Output>")),  # Marco-o1
    _Family(("<seed:think>",), "</seed:think>"),  # Seed-OSS
    _Family(("<mm:think>",), "</mm:think>"),  # MiniMax M3
    _Family(("[THINK]",), "[/THINK]"),  # Magistral
    _Family(("<|thought_start|>",), "<|thought_end|>"),  # MiniCPM3
    _Family(("<|inner_prefix|>",), "<|inner_suffix|>"),  # Apertus
    _Family(("<|channel>thought",), "<channel|>"),  # Gemma 4
    _Family(
        ("<|START_THINKING|>",),
        "<|END_THINKING|>",
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),  # Command R7B and later
    _Family(
        ("<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>"),
        "<|end|>",
        ("<|start|>assistant", "<|channel|>final<|message|>"),
        ("<|channel|>", "<|message|>"),
        channels=True,
    ),  # gpt-oss
    _Family(
        ("<|think|>",),
        "<|end|>",
        ("<|begin|>assistant", "<|content|>"),
        ("<|think|>", "<|content|>"),
        channels=True,
    ),  # Solar Open
)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the answers of one model are to be read."""

    marks: tuple[tuple[str, str], ...]  # which word opens a thought, and which then closes it
    around: tuple[str, ...] = ()
    anywhere: bool = False
    opened: str | None = None  # what closes the thought that the prompt itself has opened
    words: tuple[str, ...] = field(default=())  # of this model's own: they must come as text


ANY = Thinking(tuple((each.opens[0], each.closes) for each in _FAMILIES if not each.channels))
"""For a model that nothing is known of: all marks that nobody writes by chance."""

NONE = Thinking(())
"""For a model whose thoughts somebody else looks for."""


def thinking_of(template: str | None, vocabulary: Iterable[str]) -> Thinking:
    """Find out from a model's own chat template and its special tokens how it thinks."""
    known = f"{template or ''} {' '.join(vocabulary)}"
    named = [
        family
        for family in _FAMILIES
        if all(word in known for word in family.known_by or (family.closes,))
    ]
    if not named:
        return ANY
    channels = any(family.channels for family in named)
    own = tuple((opens, family.closes) for family in named for opens in family.opens)
    around = tuple(word for family in named for word in family.around if channels or word in known)
    return Thinking(
        marks=own if channels else (*own, *ANY.marks),
        around=around,
        anywhere=channels,
        words=tuple(dict.fromkeys([*(word for pair in own for word in pair), *around])),
    )


def opened_by(thinking: Thinking, pieces: Sequence[TextSpan]) -> Thinking:
    """The same for an answer to this prompt, whose template may have opened a thought."""
    if not pieces or not pieces[-1].trusted:
        return thinking
    end = pieces[-1].text.rstrip()
    closes = (closes for opens, closes in thinking.marks if end.endswith(opens))
    return replace(thinking, opened=next(closes, None))


class Cut(NamedTuple):
    said: str
    thought: str


class Thoughts:
    """Feed it an answer in any pieces, get what is said and what is only thought."""

    def __init__(self, thinking: Thinking = ANY) -> None:
        self._marks = dict(thinking.marks)
        self._words = (*self._marks, *thinking.around)
        self._later = self._words if thinking.anywhere else thinking.around
        self._closing = thinking.opened
        self._begun = False  # a word of the answer itself has come
        self._thought = self._closing is not None
        self._held = ""

    def feed(self, text: str) -> Cut:
        if self._begun and not self._later and self._closing is None:
            return Cut(text, "")  # nearly every piece of every answer
        self._held += text
        said: list[str] = []
        thought: list[str] = []
        while self._held and self._step(said, thought):
            pass
        return Cut("".join(said), "".join(thought))

    def rest(self) -> Cut:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        if self._closing is not None:
            return Cut("", held)
        return Cut("" if self._thought and not self._begun and not held.strip() else held, "")

    def _step(self, said: list[str], thought: list[str]) -> bool:
        """Take something from what is held; False when more must come first."""
        if self._closing is not None:
            return self._think(self._closing, thought)
        return self._speak(said) if self._begun else self._begin()

    def _think(self, closing: str, thought: list[str]) -> bool:
        before, found, after = self._held.partition(closing)
        if found:
            thought.append(before)
            self._closing, self._held = None, after
            return True
        kept = _overlap(before, [closing])
        thought.append(before[: len(before) - kept])
        self._held = before[len(before) - kept :]
        return False

    def _begin(self) -> bool:
        """Nothing but white space was said: whatever comes next decides."""
        text = self._held.lstrip()
        word = next((word for word in self._words if text.startswith(word)), None)
        if word is not None:
            self._take(word, text[len(word) :])
        elif any(word.startswith(text) for word in self._words):
            return False
        else:
            self._begun = True
            if self._thought:
                self._held = text
        return True

    def _speak(self, said: list[str]) -> bool:
        found = [(at, word) for word in self._later if (at := self._held.find(word)) >= 0]
        if found:
            at, word = min(found)
            said.append(self._held[:at])
            self._take(word, self._held[at + len(word) :])
            return True
        kept = _overlap(self._held, self._later)
        said.append(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _take(self, word: str, after: str) -> None:
        self._closing = self._marks.get(word)
        self._thought = True
        self._held = after


async def separated(
    answer: AsyncGenerator[Delta | ReasoningDelta | Finish, None],
    thinking: Thinking,
    stop: Sequence[str],
) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    """Tell an engine's answer apart, and end it at a stop string; one in a thought does not count.

    Closes `answer`; behaves as `Backend.generate` does.
    """
    thoughts, stops = Thoughts(thinking), StopStringFilter(stop)
    async with aclosing(answer) as pieces:
        async for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                yield piece
                continue
            cut = thoughts.feed(piece.text) if isinstance(piece, Delta) else thoughts.rest()
            if cut.thought:
                yield ReasoningDelta(cut.thought)
            said = stops.feed(cut.said)
            if isinstance(piece, Finish):
                said += stops.flush()
            if said:
                yield Delta(said)
            if isinstance(piece, Finish):
                yield piece
            elif stops.hit:
                yield Finish(FinishReason.STOP)
                return


def _overlap(text: str, words: Iterable[str]) -> int:
    """How many characters at the end of `text` are the beginning of one of `words`."""
    return max(
        (
            size
            for word in words
            for size in range(1, min(len(text), len(word) - 1) + 1)
            if text.endswith(word[:size])
        ),
        default=0,
    )
