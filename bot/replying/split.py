"""Split Markdown into messages that a platform accepts."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from bot.chat.outgoing import Limits
from bot.markup.graphemes import is_visible
from bot.replying.cut_points import (
    CutWindow,
    Fence,
    choose_cut_point,
    find_fence_lines,
    find_open_marks,
    find_quote_prefix,
)
from bot.value_class import value_class

# Code blocks come first, so that marks inside them are not matched.
_HIDDEN_MARKS = re.compile(
    r"^[ \t]*(?P<run>`{3,}|~{3,})[^\n]*\n(?P<code>(?:.*?\n)??)(?:[ \t]*(?P=run)[ \t]*$|\Z)"
    r"|(?P<line>^[ \t]*(?:>[ \t]?|\#{1,6}[ \t])+)"
    r"|!?\[(?P<label>[^\[\]\n]*)\]\(https?://[^()\s]*\)"
    r"|(?P<mark>`+|\*{1,3}|__|~~|\|\|)(?=\S)(?P<inner>[^\n]*?\S)(?P=mark)(?![*`])",
    re.MULTILINE | re.DOTALL,
)
_TEXT_GROUP_NAMES = ("code", "label", "inner")


def _find_markup_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of Markdown marks that rendering hides, except marks within other marks."""
    for match in _HIDDEN_MARKS.finditer(text):
        start, end = match.span()
        visible_group = next((name for name in _TEXT_GROUP_NAMES if match[name] is not None), None)
        if visible_group is None:
            yield start, end
        else:
            yield start, match.start(visible_group)
            yield match.end(visible_group), end


_TABLE_ROW = re.compile(r"[ \t]*\|")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_TABLE_DELIMITER_ROW = re.compile(r"[ \t]*\|[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t\r]*")


def find_open_table_header(text: str, previous_header: str) -> str:
    """Return the header of the table that a text ends in, or "" if it ends in none.

    `previous_header` is the header of the table that the previous message ended in.
    """
    *_, block = _BLANK_LINE.split(text)
    if previous_header and len(block) == len(text):
        return previous_header
    lines = block.split("\n")
    for header, delimiter_row in pairwise(lines):
        if header.lstrip().startswith("|") and _TABLE_DELIMITER_ROW.fullmatch(delimiter_row):
            return f"{header}\n{delimiter_row}\n"
    return ""


def continues_with_table_row(text: str, end: int, position: int) -> bool:
    """Return whether the message after a cut from `end` to `position` starts with a table row."""
    text_between = text[end:position]
    is_line_break = "\n" in text_between and not _BLANK_LINE.search(text_between)
    return is_line_break and _TABLE_ROW.match(text, position) is not None


_MARK = re.compile(r"`+|\*\*|\*|__|~~|\|\|")
_MAX_MARK_UNITS = 8
"""The units of a message that are reserved for closing marks."""
_MIN_LIMIT_TO_REOPEN_MARKS = 200
_PARAGRAPH_BREAK = re.compile(r"\n[ \t>]*\n")
_VISIBLE_CHARACTER = re.compile(r"\S")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


@value_class
class PartSpan:
    """One message as a span of the text, plus texts that reopen and close a code block."""

    start: int
    end: int
    opening_text: str
    """Text that reopens the code block that the previous message closed."""
    closing_text: str
    """Text that closes the code block that the next message reopens."""

    def extract_message(self, text: str) -> str:
        """Return the text of the message: this span of `text` between the two texts."""
        return self.opening_text + text[self.start : self.end] + self.closing_text


def split(text: str, limits: Limits) -> list[str]:
    """Split a text into messages within the limits; no message is blank.

    When text is appended later, all messages but the last stay the same. Only whitespace around
    cuts is lost. Runs in linear time.
    """
    stripped_text = text.strip()
    if "```" not in stripped_text and "~~~" not in stripped_text and _fits(stripped_text, limits):
        if not is_visible(stripped_text):
            return []
        if limits.to_visible_text is None or _fits(limits.to_visible_text(stripped_text), limits):
            return [stripped_text]
        return list(_split_rendered_text(stripped_text, limits, limits.max_units))
    parts = [span.extract_message(text) for span in find_part_spans(text, limits)]
    if limits.to_visible_text is None:
        return parts
    return [piece for one in parts for piece in _split_rendered_text(one, limits, limits.max_units)]


def _split_rendered_text(text: str, limits: Limits, max_units: int) -> Iterator[str]:
    """Yield a text or, if it is too long for one message once rendered, smaller parts of it."""
    rendered_text = limits.to_visible_text(text) if limits.to_visible_text else text
    smaller_max_units = max_units // 2
    if smaller_max_units < 1 or limits.measure(rendered_text) <= limits.max_units:
        yield text
        return
    plain_limits = replace(limits, max_units=smaller_max_units, hides_markup=False)
    for span in find_part_spans(text, plain_limits):
        yield from _split_rendered_text(span.extract_message(text), limits, smaller_max_units)


def find_part_spans(text: str, limits: Limits) -> Iterator[PartSpan]:
    """Yield the spans of the text that become messages, in order."""
    offsets = _compute_unit_offsets(text, limits)
    position, fence, next_opening_text, table_header = 0, None, "", ""
    while True:
        position, fence = _skip_closing_fence(text, position, fence)
        start = _find_content_start(text, position, fence)
        if start == len(text):
            return
        opening_text = next_opening_text if fence is None else ""
        if fence is not None and limits.reopens_code_blocks:
            opening_text = f"{fence.prefix}{fence.opening_fence}\n"
            if ">" in fence.prefix:
                opening_text += find_quote_prefix(text, start)
        max_units = limits.max_units - limits.measure(opening_text)
        window = _find_cut_window(text, offsets, position, start, fence, limits, max_units)
        end, position = choose_cut_point(window) if window.is_full else (len(text), len(text))
        fence = window.fence_at(position)
        content = text[start:end].rstrip()
        open_marks, next_opening_text = "", ""
        if window.is_full and fence is None and _should_reopen_marks(limits):
            prose_start = max(window.find_prose_start(position), start)
            open_marks, next_opening_text = _find_marks_at_cut(text, prose_start, end, position)
            previous_header = table_header if prose_start == start else ""
            table_header = find_open_table_header(text[prose_start:end], previous_header)
            is_header_short = limits.measure(table_header) <= limits.max_units // 4
            if table_header and is_header_short and continues_with_table_row(text, end, position):
                open_marks, next_opening_text = "", table_header
        if is_visible(content):
            closing_text = "".join(reversed(_MARK.findall(open_marks)))
            if fence is not None and limits.reopens_code_blocks:
                closing_text = f"\n{fence.closing_line}"
            yield PartSpan(start, start + len(content), opening_text, closing_text)


def _find_cut_window(
    text: str,
    offsets: Sequence[int],
    position: int,
    start: int,
    fence: Fence | None,
    limits: Limits,
    max_units: int,
) -> CutWindow:
    """Return the `CutWindow` of the next message, with space for closing marks if necessary."""
    window = CutWindow(text, offsets, position, start, fence, max_units, limits.max_units // 4)
    first_mark = window.is_full and _MARK.search(text, start, window.end)
    if not first_mark or not _should_reopen_marks(limits):
        return window
    return replace(window, max_units=max_units - _MAX_MARK_UNITS)


def _should_reopen_marks(limits: Limits) -> bool:
    return limits.to_visible_text is not None and limits.max_units >= _MIN_LIMIT_TO_REOPEN_MARKS


def _find_marks_at_cut(text: str, prose_start: int, end: int, position: int) -> tuple[str, str]:
    """Return the marks that are open at a cut, and the text with which the next message starts.

    `prose_start` is the position after the last code block. The message ends at `end`, and the next
    one starts at `position`.
    """
    gap = text[end:position]
    marks = "" if _PARAGRAPH_BREAK.search(gap) else "".join(find_open_marks(text[prose_start:end]))
    if len(marks) > _MAX_MARK_UNITS:
        marks = ""
    return marks, marks if "\n" in gap else find_quote_prefix(text, end) + marks


def _skip_closing_fence(text: str, position: int, fence: Fence | None) -> tuple[int, Fence | None]:
    """Skip a closing fence at the start, because the previous message closed the block."""
    if fence is None:
        return position, None
    blank_lines = _BLANK_LINES.match(text, position)
    position = blank_lines.end() if blank_lines else position
    line_end = text.find("\n", position) + 1 or len(text)
    closing_fence = next(find_fence_lines(text, position, line_end), None)
    if closing_fence is None or not closing_fence.closes(fence, text):
        return position, fence
    return line_end, None


def _find_content_start(text: str, position: int, fence: Fence | None) -> int:
    visible_match = _VISIBLE_CHARACTER.search(text, position)
    if visible_match is None:
        return len(text)
    return visible_match.start() if fence is None else position  # code keeps its indentation


def _fits(text: str, limits: Limits) -> bool:
    # A character has at most two units, so that most texts need not be measured.
    return 2 * len(text) <= limits.max_units or limits.measure(text) <= limits.max_units


def _compute_unit_offsets(text: str, limits: Limits) -> Sequence[int]:
    """Return the number of visible units before each position, including the end."""
    hides_marks = limits.hides_markup and len(text) > limits.max_units
    if not hides_marks and limits.measure(text) == len(text):
        return range(len(text) + 1)
    weights = [2 if letter > "\uffff" else 1 for letter in text]
    for start, end in _find_markup_spans(text) if hides_marks else ():
        weights[start:end] = [0] * (end - start)
    return [0, *accumulate(weights)]
