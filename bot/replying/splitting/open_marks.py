"""Find the marks that a text leaves open, so that a message can close and the next reopen them."""

import re

from bot.replying.splitting.code_fences import Fence, fence_lines

_TOKEN = re.compile(r"\\.|`+|\*{1,3}|__|~~|\|\|", re.DOTALL)
_PARAGRAPH_END = re.compile(r"\n[ \t>]*\n")
_TRAILING_MARKS = re.compile(r"[*_~|`]+\Z")
_HALF_LINK = re.compile(r"!?\[(?P<label>[^\[\]\n]+)\]\([^()\s]*\Z")
_QUOTE = re.compile(r"[ \t]*(?:>[ \t]?)+")


def open_marks(text: str) -> tuple[str, ...]:
    """Return the marks that the last paragraph of a text opens and does not close, in order."""
    breaks = [found.end() for found in _PARAGRAPH_END.finditer(text)]
    position, stack = breaks[-1] if breaks else 0, list[str]()
    while found := _TOKEN.search(text, position):
        position = found.end()
        if found[0].startswith("`"):
            end = _end_of_code(text, found[0], position)
            if end is None:
                return (*stack, found[0])
            position = end
        elif not found[0].startswith("\\"):
            _note(found, text, stack)
    return tuple(stack)


def close_unfinished(part: str) -> str:
    """Return a text that still grows so that it reads well: nothing half is left of its marks."""
    fence = _open_fence(part)
    if fence is not None:
        return f"{part}\n{fence.closer}"
    half_link = _HALF_LINK.search(part)
    if half_link is not None:
        part = part[: half_link.start()] + half_link["label"]
    trailing = _TRAILING_MARKS.search(part)
    marks = open_marks(part)
    if trailing is not None:
        before = part[: trailing.start()]
        still_open = open_marks(before)
        if len(marks) >= len(still_open):  # it closes nothing: it is half of something
            part, marks = before.rstrip(), still_open
    return part + "".join(reversed(marks))


def quote_prefix(text: str, position: int) -> str:
    """Return the `> ` that the line of a position begins with, if the line is cut there."""
    line = text.rfind("\n", 0, position) + 1
    found = _QUOTE.match(text, line, position)
    return found[0].lstrip() if found else ""


def _note(found: re.Match[str], text: str, stack: list[str]) -> None:
    """Open or close what a mark stands for."""
    before = text[found.start() - 1 : found.start()]
    after = text[found.end() : found.end() + 1]
    marks = ["**", "*"] if found[0] == "***" else [found[0]]
    closes = bool(before) and not before.isspace()
    if closes and all(mark in stack for mark in marks):
        del stack[min(stack.index(mark) for mark in marks) :]
        return
    opens = bool(after) and not after.isspace()
    is_within_word = before.isalnum() and after.isalnum()
    if opens and not is_within_word:
        stack += marks


def _end_of_code(text: str, run: str, position: int) -> int | None:
    closing = re.compile(rf"(?<!`){run}(?!`)").search(text, position)
    return closing.end() if closing else None


def _open_fence(part: str) -> Fence | None:
    fence: Fence | None = None
    for line in fence_lines(part, 0, len(part)):
        if fence is None:
            fence = line.opens(part)
        elif line.closes(fence, part):
            fence = None
    return fence
