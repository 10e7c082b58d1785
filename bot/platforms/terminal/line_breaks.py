"""Find where lines of Chinese, Japanese and mixed text break: between any two characters.

Rich breaks lines at spaces only, and would begin a new line before every long sentence. A line
neither begins with a closing punctuation mark nor ends with an opening one.
"""

import re

from rich.cells import cell_len

_WIDE = "\u2e80-\u2fff\u3005-\u3007\u3021-\u30ff\u3100-\u9fff\uac00-\ud7af\uf900-\ufaff"
_OPENING = "（「『【《〈“‘("
_CLOSING = "，。！？；：、）」』】》〉”’…—,.!?;:)"
_UNIT = re.compile(
    rf"[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}{_OPENING}{_CLOSING}]+|(?<!\S)[^\s{_WIDE}])?"
    rf"[{_CLOSING}]*\s*"
)
_HAS_WIDE = re.compile(rf"[{_WIDE}]")


def has_wide_text(text: str) -> bool:
    """Return whether a text has characters that lines may break after."""
    return _HAS_WIDE.search(text) is not None


def line_breaks(text: str, width: int) -> list[int]:
    """Return the offsets at which new lines begin, so that each line fits into so many columns."""
    breaks: list[int] = []
    column = 0
    for unit in _UNIT.finditer(text):
        cells = cell_len(unit[0].rstrip())
        if column + cells > width and column:
            breaks.append(unit.start())
            column = 0
        if cells > width:  # a word that fits into no line
            column = _break_word(unit[0], unit.start(), width, breaks)
        else:
            column += cell_len(unit[0])
    return breaks


def _break_word(word: str, start: int, width: int, breaks: list[int]) -> int:
    column = 0
    for offset, character in enumerate(word):
        cells = cell_len(character)
        if column + cells > width:
            breaks.append(start + offset)
            column = 0
        column += cells
    return column
