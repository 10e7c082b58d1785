"""Find the head of a table that goes on after a cut, so that the next message can begin with it."""

import re
from itertools import pairwise

_ROW = re.compile(r"[ \t]*\|")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_RULE = re.compile(r"[ \t]*\|[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t\r]*")


def open_table(text: str, before: str) -> str:
    """Return the head of the table that a text ends in, with the rule below it; empty: none.

    Args:
        text: a message, without code blocks.
        before: the head of the table that the message before ended in.
    """
    *_, block = _BLANK_LINE.split(text)
    if before and len(block) == len(text):
        return before
    lines = block.split("\n")
    for head, rule in pairwise(lines):
        if head.lstrip().startswith("|") and _RULE.fullmatch(rule):
            return f"{head}\n{rule}\n"
    return ""


def goes_on_with_row(text: str, end: int, position: int) -> bool:
    """Return whether a new row of a table begins at a position, for a cut that is made at `end`."""
    between = text[end:position]
    is_new_line = "\n" in between and not _BLANK_LINE.search(between)
    return is_new_line and _ROW.match(text, position) is not None
