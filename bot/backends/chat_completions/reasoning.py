"""Separate a model's reasoning from its answer: only the answer is for the reader.

Each model family has its own tags around its reasoning. They count only at the beginning of an
answer, before any other word: a model that explains the tag <think> does not reason. Some templates
write the start tag themselves, so that the answer begins inside the reasoning.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from bot.backends.chat_completions.stop_strings import StopStringFilter
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.frozen_dataclass import frozen_dataclass
from bot.templates.text_spans import TextSpan


@frozen_dataclass
class _Family:
    """The reasoning tags of one family, as its templates and llama.cpp's parsers have them."""

    start_tags: tuple[str, ...]
    end_tag: str
    answer_markers: tuple[str, ...] = ()
    """Text around the answer itself that is no part of it."""
    identified_by: tuple[str, ...] = ()
    """Texts that identify such a model; none: its end tag."""
    has_channels: bool = False
    """Every part of an answer is tagged, so reasoning may come anywhere."""


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
        has_channels=True,
    ),  # gpt-oss
    _Family(
        ("<|think|>",),
        "<|end|>",
        ("<|begin|>assistant", "<|content|>"),
        ("<|think|>", "<|content|>"),
        has_channels=True,
    ),  # Solar Open
)


@frozen_dataclass
class ReasoningFormat:
    """How reasoning is written in the answers of one model."""

    tags: tuple[tuple[str, str], ...]
    """Pairs of a start tag and its end tag."""
    answer_markers: tuple[str, ...] = ()
    """Text around the answer itself that is no part of it."""
    anywhere: bool = False
    """Reasoning may come anywhere in an answer, not only at its beginning."""
    open_end_tag: str | None = None
    """The end tag of the reasoning that the prompt itself has opened."""
    special_tokens: tuple[str, ...] = ()
    """All tags of this model's own: an engine must return them as text."""


ANY_FORMAT = ReasoningFormat(
    tuple((each.start_tags[0], each.end_tag) for each in _FAMILIES if not each.has_channels)
)
"""For a model that nothing is known of: all tags that nobody writes by chance."""

NO_FORMAT = ReasoningFormat(())
"""For an answer whose reasoning is separated elsewhere."""


def detect_format(template: str | None, vocabulary: Iterable[str]) -> ReasoningFormat:
    """Detect a model's reasoning format from its chat template and its special tokens."""
    known = f"{template or ''} {' '.join(vocabulary)}"
    families = [
        family
        for family in _FAMILIES
        if all(word in known for word in family.identified_by or (family.end_tag,))
    ]
    if not families:
        return ANY_FORMAT
    has_channels = any(family.has_channels for family in families)
    tags = tuple((start, family.end_tag) for family in families for start in family.start_tags)
    markers = tuple(
        marker
        for family in families
        for marker in family.answer_markers
        if has_channels or marker in known
    )
    return ReasoningFormat(
        tags=tags if has_channels else (*tags, *ANY_FORMAT.tags),
        answer_markers=markers,
        anywhere=has_channels,
        special_tokens=tuple(dict.fromkeys([*(tag for pair in tags for tag in pair), *markers])),
    )


def detect_open_tag(reasoning: ReasoningFormat, prompt: Sequence[TextSpan]) -> ReasoningFormat:
    """Return the format of an answer to this prompt, whose template may have opened reasoning."""
    if not prompt or not prompt[-1].trusted:
        return reasoning
    end = prompt[-1].text.rstrip()
    end_tags = (end_tag for start_tag, end_tag in reasoning.tags if end.endswith(start_tag))
    return replace(reasoning, open_end_tag=next(end_tags, None))


class SeparatedText(NamedTuple):
    """Two parts of a piece of text."""

    answer: str
    reasoning: str


class ReasoningParser:
    """Take an answer in pieces of any size and separate its reasoning from its text."""

    def __init__(self, reasoning: ReasoningFormat = ANY_FORMAT) -> None:
        self._end_tags = dict(reasoning.tags)
        self._first_tags = (*self._end_tags, *reasoning.answer_markers)
        self._later_tags = self._first_tags if reasoning.anywhere else reasoning.answer_markers
        self._end_tag = reasoning.open_end_tag  # None outside of reasoning
        self._in_answer = False  # a word of the answer itself has come
        self._has_reasoned = self._end_tag is not None
        self._held = ""
        self._later_first_chars = {tag[0] for tag in self._later_tags}

    def feed(self, text: str) -> SeparatedText:
        """Take the next piece; what could become a tag is held back."""
        if (
            self._in_answer
            and self._end_tag is None
            and not self._held
            and self._later_first_chars.isdisjoint(text)
        ):
            return SeparatedText(text, "")  # nearly every piece of every answer
        self._held += text
        answer: list[str] = []
        reasoning: list[str] = []
        while self._held and self._step(answer, reasoning):
            pass
        return SeparatedText("".join(answer), "".join(reasoning))

    def flush(self) -> SeparatedText:
        """Return what was held back; call it at the end of the answer."""
        held, self._held = self._held, ""
        if self._end_tag is not None:
            return SeparatedText("", held)
        is_blank = self._has_reasoned and not self._in_answer and not held.strip()
        return SeparatedText("" if is_blank else held, "")

    def _step(self, answer: list[str], reasoning: list[str]) -> bool:
        """Consume a part of what is held; False when more must come first."""
        if self._end_tag is not None:
            return self._parse_reasoning(self._end_tag, reasoning)
        return self._parse_answer(answer) if self._in_answer else self._parse_beginning()

    def _parse_reasoning(self, end_tag: str, reasoning: list[str]) -> bool:
        before, found, after = self._held.partition(end_tag)
        if found:
            reasoning.append(before)
            self._end_tag, self._held = None, after
            return True
        kept = _overlap(before, [end_tag])
        reasoning.append(before[: len(before) - kept])
        self._held = before[len(before) - kept :]
        return False

    def _parse_beginning(self) -> bool:
        """Decide by what follows: until now there was nothing but white space."""
        text = self._held.lstrip()
        tag = next((tag for tag in self._first_tags if text.startswith(tag)), None)
        if tag is not None:
            self._consume_tag(tag, text[len(tag) :])
        elif any(tag.startswith(text) for tag in self._first_tags):
            return False
        else:
            self._in_answer = True
            if self._has_reasoned:
                self._held = text
        return True

    def _parse_answer(self, answer: list[str]) -> bool:
        found = [(at, tag) for tag in self._later_tags if (at := self._held.find(tag)) >= 0]
        if found:
            at, tag = min(found)
            answer.append(self._held[:at])
            self._consume_tag(tag, self._held[at + len(tag) :])
            return True
        kept = _overlap(self._held, self._later_tags)
        answer.append(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _consume_tag(self, tag: str, after: str) -> None:
        self._end_tag = self._end_tags.get(tag)
        self._has_reasoned = True
        self._held = after


async def separate_reasoning(
    answer: AsyncGenerator[Delta | ReasoningDelta | Finish, None],
    reasoning: ReasoningFormat,
    stop: Sequence[str],
) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    """Turn reasoning in an answer's text into `ReasoningDelta` and end it at a stop string.

    A stop string inside the reasoning does not count. Closes `answer`; behaves as
    `Backend.generate` does.
    """
    parser, stop_filter = ReasoningParser(reasoning), StopStringFilter(stop)
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, ReasoningDelta):
                yield event
                continue
            parsed = parser.feed(event.text) if isinstance(event, Delta) else parser.flush()
            if parsed.reasoning:
                yield ReasoningDelta(parsed.reasoning)
            text = stop_filter.feed(parsed.answer)
            if isinstance(event, Finish):
                text += stop_filter.flush()
            if text:
                yield Delta(text)
            if isinstance(event, Finish):
                yield event
            elif stop_filter.hit:
                yield Finish(FinishReason.STOP)
                return


def _overlap(text: str, tags: Iterable[str]) -> int:
    """Return how many characters at the end of `text` are the beginning of one of `tags`."""
    return max(
        (
            size
            for tag in tags
            for size in range(1, min(len(text), len(tag) - 1) + 1)
            if text.endswith(tag[:size])
        ),
        default=0,
    )
