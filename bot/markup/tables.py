"""Format tables for chats, as monospaced text."""

import unicodedata
from collections.abc import Sequence

_COLUMN_GAP = " │ "
_MAX_CELL_WIDTH = 40
"""The maximum width of a cell; a table with a wider one would not fit on a phone."""
_MAX_TABLE_WIDTH = 120


def display_width(text: str) -> int:
    """Return the width of a text in monospaced columns; a Chinese character takes two."""
    return sum(map(_character_width, text))


def format_table(rows: Sequence[Sequence[str]], alignments: Sequence[str]) -> str:
    """Format rows, the first of which is the header, as a table or, if too wide, as a list."""
    column_count = max(map(len, rows), default=0)
    full_rows = [[*row, *[""] * (column_count - len(row))] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*full_rows, strict=True)]
    is_too_wide = sum(widths) + len(_COLUMN_GAP) * (column_count - 1) > _MAX_TABLE_WIDTH
    if is_too_wide or any(width > _MAX_CELL_WIDTH for width in widths):
        return _format_as_list(full_rows)
    column_alignments = [*alignments, *[""] * column_count][:column_count]
    padded_rows = (map(_pad_cell, row, widths, column_alignments) for row in full_rows)
    header_line, *body_lines = [_COLUMN_GAP.join(row).rstrip() for row in padded_rows]
    separator_line = "─┼─".join("─" * width for width in widths)
    return "\n".join([header_line, separator_line, *body_lines])


def _format_as_list(rows: Sequence[Sequence[str]]) -> str:
    """Format each row as a paragraph of lines such as "header: cell"."""
    head, *body = rows
    if not body:
        return "\n".join(filter(None, head))
    entries = [[(name, cell) for name, cell in zip(head, row, strict=True) if cell] for row in body]
    paragraphs = ("\n".join(": ".join(filter(None, pair)) for pair in row) for row in entries)
    return "\n\n".join(filter(None, paragraphs))


def _pad_cell(text: str, width: int, alignment: str) -> str:
    space_count = width - display_width(text)
    leading_space_count = {"right": space_count, "center": space_count // 2}.get(alignment, 0)
    return " " * leading_space_count + text + " " * (space_count - leading_space_count)


def _character_width(character: str) -> int:
    if character < "\u0300":
        return 1
    if unicodedata.category(character) in {"Mn", "Me", "Cf"} or "\ufe00" <= character <= "\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
