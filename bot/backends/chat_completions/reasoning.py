"""Separate a model's reasoning from its answer, because readers see only the answer.

Reasoning is enclosed in tags, usually before the answer. Tags in code or quotes are plain
text: a model that explains <think> is not reasoning. Many chat templates already write the start
tag, so that the answer starts inside the reasoning and contains only an end tag.
"""

import re
import tomllib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import regex

from bot.backends.chat_completions.stop_strings import StopStringFilter
from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, ReasoningDelta, Retraction
from bot.templates.control_tokens import TextSpan
from bot.value_class import value_class


@value_class
class _TagFamily:
    """How a family of models marks reasoning (a table in reasoning_families.toml)."""

    start_pattern: str
    end_pattern: str
    tokens: Sequence[str] = ()
    identified_by: Sequence[str] = ()
    is_ambiguous: bool = False
    is_markup: bool = False


_CATALOG = tomllib.loads(Path(__file__).with_name("reasoning_families.toml").read_text("utf-8"))
CALLEE_PREFIX: Final[str] = _CATALOG["parts"]["CALLEE"]
"""The part of a gpt-oss tag that announces a tool call."""
TAG_FIRST_CHARS: Final = frozenset("<[◁")
_TAG_FAMILIES = [_TagFamily(**fields) for fields in _CATALOG["family"]]


class TagKind(Enum):
    START = "start"
    LONE_END = "lone end"
    MARKER = "marker"
    TURN_END = "turn end"  # left in by a misconfigured server; removed where the text ends
    WRAPPER = "wrapper"
    """Opens the answer; ignored unless it directly follows reasoning."""
    INCOMPLETE = "incomplete"


class Tag(NamedTuple):
    kind: TagKind
    text: str
    end_pattern: "regex.Pattern[str] | None" = None
    is_ambiguous: bool = False
    is_markup: bool = False


INCOMPLETE: Final = Tag(TagKind.INCOMPLETE, "")


def _compile_pattern(pattern: str) -> "regex.Pattern[str]":
    for name, part in reversed(_CATALOG["parts"].items()):
        pattern = pattern.replace(f"%{name}%", part)
    return regex.compile(pattern, regex.IGNORECASE)


def _compile_tag(kind: TagKind) -> "regex.Pattern[str]":
    pattern = "|".join(_CATALOG["tags"][kind.value])
    return _compile_pattern(rf"(?:(?:{pattern})\s*)+" if kind is TagKind.TURN_END else pattern)


_TAG_PATTERNS = (
    *((_compile_pattern(family.start_pattern), TagKind.START, family) for family in _TAG_FAMILIES),
    *(
        (_compile_tag(kind), kind, None)
        for kind in (TagKind.LONE_END, TagKind.MARKER, TagKind.TURN_END, TagKind.WRAPPER)
    ),
)
_LOOKUP_CHARS = 3
_TEMPLATE_TAG_PATTERN = regex.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z]+\]|◁/?think▷")


def match_tag(text: str, position: int, *, more_may_follow: bool = False) -> Tag | None:
    """Return the longest tag that starts at a position, if there is one.

    If `more_may_follow`, return `INCOMPLETE` where more text could complete a tag.
    """
    longest_tag: Tag | None = None
    for pattern, kind, family in _preselect_patterns(text[position : position + _LOOKUP_CHARS]):
        match = pattern.match(text, position, partial=more_may_follow)
        if match is None:
            continue
        if match.partial:
            return INCOMPLETE
        if longest_tag is None or len(match[0]) > len(longest_tag.text):
            end = family.end_pattern if family else "</{name}>" if kind is TagKind.WRAPPER else ""
            named_groups = tuple(sorted(match.groupdict().items()))
            end_pattern = _compile_end_tag(end, named_groups) if end else None
            is_ambiguous = family is not None and family.is_ambiguous
            is_markup = family is not None and family.is_markup
            longest_tag = Tag(kind, match[0], end_pattern, is_ambiguous, is_markup)
    return longest_tag


@lru_cache(4096)
def _preselect_patterns(
    first_chars: str,
) -> "Sequence[tuple[regex.Pattern[str], TagKind, _TagFamily | None]]":
    return [entry for entry in _TAG_PATTERNS if entry[0].match(first_chars, partial=True)]


@lru_cache(256)
def _compile_end_tag(template: str, values: tuple[tuple[str, str], ...]) -> "regex.Pattern[str]":
    return _compile_pattern(template.format(**{name: regex.escape(text) for name, text in values}))


def find_tag_tokens(template: str, vocabulary: Iterable[str]) -> tuple[tuple[str, ...], set[str]]:
    """Return the model's tokens that are reasoning tags, and the subset that ends reasoning."""
    words = [*_TEMPLATE_TAG_PATTERN.findall(template), *vocabulary]
    all_text = " ".join([template, *words])
    tag_tokens: dict[str, None] = {}
    end_tokens: set[str] = set()
    for word in words:
        tag = match_tag(word, 0)
        if tag and tag.text == word and tag.kind in {TagKind.START, TagKind.LONE_END}:
            tag_tokens[word] = None
            end_tokens |= {word} if tag.kind is TagKind.LONE_END else set()
    for family in _TAG_FAMILIES:
        if family.tokens and all(one in all_text for one in family.identified_by or family.tokens):
            tag_tokens |= dict.fromkeys(family.tokens)
            end_tokens.add(family.tokens[-1])
    return tuple(tag_tokens), end_tokens


_TAG_START_PATTERN = re.compile("[<[\u25c1]")
_QUOTATION_MARKS = tuple("`\"'“‘«„「『(")
_CODE_FENCE = re.compile(r"^\s{0,3}(?:```|~~~)", re.MULTILINE)


@value_class
class ReasoningFormat:
    """How a model marks the reasoning in its answers."""

    may_have_tags: bool = True
    """Whether the text may contain tagged reasoning."""
    unclosed_tag: str | None = None
    """The start tag at the prompt's end, if any: the answer then starts inside the reasoning."""
    assumed_end_tag: str | None = None
    """An end tag without a start tag, seen in the model's last answer and expected again."""
    special_tokens: tuple[str, ...] = ()
    keeps_tool_calls: bool = False
    """Whether tool calls stay in the text, for another parser to read."""
    closing_tokens: frozenset[str] = frozenset()


ANY_FORMAT = ReasoningFormat()

NO_FORMAT = ReasoningFormat(may_have_tags=False)


def detect_format(template: str | None, special_tokens: Iterable[str]) -> ReasoningFormat:
    """Detect a model's reasoning format from its chat template and special tokens."""
    tokens, end_tokens = find_tag_tokens(template or "", special_tokens)
    return ReasoningFormat(
        special_tokens=tokens, closing_tokens=frozenset(end_tokens), keeps_tool_calls=bool(tokens)
    )


def with_unclosed_tag(
    reasoning_format: ReasoningFormat, prompt: Sequence[TextSpan]
) -> ReasoningFormat:
    """Return the format, with `unclosed_tag` set if the prompt ends in a start tag."""
    if not prompt or not prompt[-1].trusted:
        return reasoning_format
    prompt_end = prompt[-1].text.rstrip()
    for match in _TAG_START_PATTERN.finditer(prompt_end):
        tag = match_tag(prompt_end, match.start())
        if tag and tag.kind is TagKind.START and prompt_end.endswith(tag.text, match.start()):
            return replace(reasoning_format, unclosed_tag=tag.text)
    return reasoning_format


class SeparatedText(NamedTuple):
    """A chunk of text, separated into answer and reasoning."""

    answer: str
    reasoning: str
    retracts_earlier_text: bool = False
    """Whether all earlier text was reasoning, although it was returned as part of the answer."""


class ReasoningParser:
    """Separates reasoning from answer in streamed text, which may arrive in chunks of any size."""

    def __init__(self, reasoning_format: ReasoningFormat = ANY_FORMAT) -> None:
        self._may_have_tags = reasoning_format.may_have_tags
        self._keeps_tool_calls = reasoning_format.keeps_tool_calls
        self._end_pattern: regex.Pattern[str] | None = None  # None outside of reasoning
        # A start tag and text, which are reasoning only if the end tag arrives; None: certain.
        self._maybe_reasoning: list[str] | None = None
        self._may_lack_start_tag = False  # the text may have started in reasoning
        self._is_in_answer = False  # the answer itself has started
        self._has_reasoned = False
        self._wrapper_end_pattern: regex.Pattern[str] | None = None
        self._buffer = ""
        self._has_all_text = False  # no more text will arrive
        self._has_tool_calls = False  # tool calls follow the text
        self._is_in_fence, self._last_line = False, ""  # to recognize tags in code
        self._unscanned_texts: list[str] = []
        self._answer_pieces: list[str] = []
        self._reasoning_pieces: list[str] = []
        self._retracts_earlier_text = False
        self.unmatched_end_tag: str | None = None
        """The end tag of reasoning that had no start tag, if any."""
        if reasoning_format.unclosed_tag is not None:
            tag = match_tag(reasoning_format.unclosed_tag, 0)
            self._end_pattern = tag and tag.end_pattern
            self._has_reasoned = True
        elif reasoning_format.assumed_end_tag is not None:
            self._end_pattern = regex.compile(regex.escape(reasoning_format.assumed_end_tag))
            self._maybe_reasoning, self._may_lack_start_tag = [""], True

    def feed(self, text: str) -> SeparatedText:
        if not self._may_have_tags:
            return SeparatedText(text, "")
        is_in_plain_text = self._is_in_answer and self._end_pattern is None and not self._buffer
        if is_in_plain_text and TAG_FIRST_CHARS.isdisjoint(text):
            self._unscanned_texts.append(text)
            return SeparatedText(text, "")  # the usual case
        self._buffer += text
        while self._buffer and self._parse_next_part():
            pass
        return self._take_separated_text()

    def record_separate_reasoning(self) -> None:
        """Record that the provider sends reasoning separately, so the text contains none."""
        self._has_reasoned = True
        if self._may_lack_start_tag and not any(self._maybe_reasoning or ()):
            self._end_pattern, self._maybe_reasoning, self._may_lack_start_tag = None, None, False

    def flush(self, *, is_cut: bool = False, has_tool_calls: bool = False) -> SeparatedText:
        """End the answer (`is_cut`: it was cut off), and return the text still held back."""
        self._has_all_text, self._has_tool_calls = True, has_tool_calls
        while self._buffer and self._parse_next_part():
            pass
        if self._end_pattern is not None:
            belongs_to_answer = self._maybe_reasoning is not None and not (
                self._may_lack_start_tag and is_cut
            )
            target_pieces = self._answer_pieces if belongs_to_answer else self._reasoning_pieces
            target_pieces.extend(self._maybe_reasoning or ())
        elif not self._has_reasoned:
            self._answer_pieces.append(self._buffer)
        self._end_pattern, self._maybe_reasoning, self._buffer = None, None, ""
        return self._take_separated_text()

    def _take_separated_text(self) -> SeparatedText:
        answer, reasoning = "".join(self._answer_pieces), "".join(self._reasoning_pieces)
        separated_text = SeparatedText(answer, reasoning, self._retracts_earlier_text)
        self._answer_pieces, self._reasoning_pieces, self._retracts_earlier_text = [], [], False
        return separated_text

    def _parse_next_part(self) -> bool:
        if self._end_pattern is not None:
            return self._parse_reasoning(self._end_pattern)
        return self._parse_answer() if self._is_in_answer else self._parse_beginning()

    def _add_reasoning(self, reasoning: str) -> None:
        (self._reasoning_pieces if self._maybe_reasoning is None else self._maybe_reasoning).append(
            reasoning
        )

    def _emit_answer(self, answer: str) -> None:
        self._answer_pieces.append(answer)
        self._unscanned_texts.append(answer)

    def _parse_reasoning(self, end_pattern: "regex.Pattern[str]") -> bool:
        match = end_pattern.search(self._buffer, partial=not self._has_all_text)
        end_tag_start = len(self._buffer) if match is None else match.start()
        self._add_reasoning(self._buffer[:end_tag_start])
        if match is None or match.partial:
            self._buffer = self._buffer[end_tag_start:]
            return False
        self._buffer = self._buffer[match.end() :]
        if self._may_lack_start_tag:
            self.unmatched_end_tag, self._may_lack_start_tag = match[0], False
        self._reasoning_pieces.extend((self._maybe_reasoning or ())[1:])  # without the start tag
        self._end_pattern, self._maybe_reasoning = None, None
        self._has_reasoned = True
        return True

    def _parse_beginning(self) -> bool:
        text = self._buffer.lstrip()
        if not text:
            return False
        tag = match_tag(text, 0, more_may_follow=not self._has_all_text)
        if tag is INCOMPLETE:
            return False
        if tag and (tag.kind is not TagKind.WRAPPER or self._has_reasoned):
            if tag.kind is TagKind.LONE_END and not self._has_reasoned:
                self.unmatched_end_tag = tag.text
            is_reasoning = tag.kind in {TagKind.START, TagKind.LONE_END}
            self._has_reasoned = self._has_reasoned or is_reasoning
            self._begin_tagged_text(tag, is_clearly_reasoning=not tag.is_ambiguous)
            self._buffer = text[len(tag.text) :]
        else:
            self._is_in_answer = True
            if self._has_reasoned:
                self._buffer = text
        return True

    def _begin_tagged_text(self, tag: Tag, *, is_clearly_reasoning: bool) -> None:
        if tag.kind is TagKind.WRAPPER:
            self._wrapper_end_pattern = tag.end_pattern
        elif tag.kind is TagKind.START and self._keeps_tool_calls and CALLEE_PREFIX in tag.text:
            self._is_in_answer = True
            self._emit_answer(tag.text.removeprefix("<|start|>assistant"))
        elif tag.kind is TagKind.START:
            self._end_pattern = tag.end_pattern
            self._maybe_reasoning = None if is_clearly_reasoning else [tag.text]

    def _parse_answer(self) -> bool:
        for start_match in _TAG_START_PATTERN.finditer(self._buffer):
            start = start_match.start()
            tag = self._match_buffered_tag(start)
            if tag is None:
                continue
            if tag is INCOMPLETE:
                return self._emit_and_await_more(start)
            text_before, text_after = self._buffer[:start], self._buffer[start + len(tag.text) :]
            if self._is_quoted(text_before):
                continue
            if tag.kind is TagKind.TURN_END:
                if text_after.strip() or "<s>" in self._find_fence_and_line(text_before)[1]:
                    continue
                self._emit_answer(self._buffer[:start])
                self._buffer = "" if self._has_all_text else self._buffer[start:]
                return False
            if tag.kind is TagKind.LONE_END:
                return self._handle_unmatched_end_tag(tag.text, text_before, text_after)
            self._emit_answer(text_before)
            self._buffer = text_after
            _, line = self._find_fence_and_line("")
            self._begin_tagged_text(tag, is_clearly_reasoning=not tag.is_markup or not line.strip())
            return True
        return self._emit_and_await_more(len(self._buffer))

    def _match_buffered_tag(self, position: int) -> Tag | None:
        more_may_follow = not self._has_all_text
        tag = match_tag(self._buffer, position, more_may_follow=more_may_follow)
        if self._wrapper_end_pattern is not None and tag is not INCOMPLETE:
            match = self._wrapper_end_pattern.match(self._buffer, position, partial=more_may_follow)
            if match is not None:
                return INCOMPLETE if match.partial else Tag(TagKind.MARKER, match[0])
        return None if tag and tag.kind is TagKind.WRAPPER else tag

    def _handle_unmatched_end_tag(self, tag: str, text_before: str, text_after: str) -> bool:
        """Decide whether the text before an end tag without a start tag was reasoning.

        It usually was. At the very end of an answer without tool calls, only the tag is removed.
        After earlier reasoning, a tag in the middle of a line is text that the answer mentions.
        Return False if more text is needed to decide.
        """
        remaining_text = text_after.lstrip()
        if not remaining_text and not self._has_all_text:
            return self._emit_and_await_more(len(text_before))
        _, line = self._find_fence_and_line(text_before)
        is_at_line_edge = not line or "\n" in text_after[: len(text_after) - len(remaining_text)]
        if not remaining_text and not self._has_tool_calls:
            self._emit_answer(text_before)
            self._buffer = ""
        elif self._has_reasoned and not is_at_line_edge:
            self._emit_answer(text_before + tag)
            self._buffer = text_after
        else:
            self._reasoning_pieces += [*self._answer_pieces, text_before]
            self._answer_pieces, self._retracts_earlier_text = [], True
            self.unmatched_end_tag = tag
            self._has_reasoned, self._is_in_answer = True, False
            self._buffer = text_after
        return True

    def _emit_and_await_more(self, position: int) -> bool:
        self._emit_answer(self._buffer[:position])
        self._buffer = self._buffer[position:]
        return False

    def _is_quoted(self, text_before: str) -> bool:
        is_in_fence, line = self._find_fence_and_line(text_before)
        return is_in_fence or line.count("`") % 2 == 1 or line.endswith(_QUOTATION_MARKS)

    def _find_fence_and_line(self, text_before: str) -> tuple[bool, str]:
        """Return whether `text_before` ends in a code block, and the unfinished line at its end."""
        text = "".join(self._unscanned_texts)
        self._is_in_fence, self._last_line = _track_fence(self._is_in_fence, self._last_line, text)
        self._unscanned_texts.clear()
        return _track_fence(self._is_in_fence, self._last_line, text_before)


def _track_fence(is_in_fence: bool, unfinished_line: str, text: str) -> tuple[bool, str]:
    finished_lines, _, unfinished_line = f"{unfinished_line}{text}".rpartition("\n")
    return is_in_fence != (len(_CODE_FENCE.findall(finished_lines)) % 2 == 1), unfinished_line


async def separate_reasoning(
    answer: AsyncGenerator[GenerationEvent, None],
    reasoning: ReasoningFormat,
    stop_strings: Sequence[str],
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield tagged reasoning as `ReasoningDelta`s, and end the answer at a stop string."""
    parser, stop_filter = ReasoningParser(reasoning), StopStringFilter(stop_strings)
    async with aclosing(answer) as events:
        async for event in events:
            if not isinstance(event, Delta | Finish):
                yield event
                continue
            if isinstance(event, Delta):
                separated_text = parser.feed(event.text)
            else:
                is_cut = event.reason is FinishReason.LENGTH
                separated_text = parser.flush(is_cut=is_cut, has_tool_calls=bool(event.tool_calls))
            if separated_text.retracts_earlier_text:
                stop_filter = StopStringFilter(stop_strings)
                yield Retraction()
            if separated_text.reasoning:
                yield ReasoningDelta(separated_text.reasoning)
            text = stop_filter.feed(separated_text.answer)
            if isinstance(event, Finish):
                text += stop_filter.flush()
            if text:
                yield Delta(text)
            if isinstance(event, Finish):
                yield event
            elif stop_filter.has_found_stop_string:
                yield Finish(FinishReason.STOP)
                return
