"""Convert Markdown to Discord's dialect, with readable text in place of unsupported markup."""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from bot.markup.graphemes import is_visible
from bot.markup.parser import find_formula, parse_markdown
from bot.markup.styled_text import style_markdown
from bot.markup.tex import tex_to_unicode
from bot.texts.caches import text_cache

# Markup to convert: headings below level 3, rules, tables, formulas, pictures, `~~~`, tasks.
_UNSUPPORTED_MARKUP = re.compile(
    r"^[ \t>]*(?:\#{4,6}[ \t]|(?:[-*_][ \t]*){3,}$|~~~|[-*+][ \t]\[[ xX]\])"
    r"|^[ \t>]*\|?[ \t]*:?-+:?[ \t]*\||\$|\\[(\[]|!\[|<br ?/?>",
    re.MULTILINE,
)
_DEEP_HEADING = re.compile(r"^(?P<before>[ \t>]*)\#{4,6}[ \t]+(?P<text>.*?)[ \t]*\#*$")
_TASK_MARKER = re.compile(r"^(?P<before>[ \t>]*[-*+][ \t])\[(?P<done>[ xX])\] ", re.MULTILINE)
_PICTURE_LINK = re.compile(r"!\[(?P<label>[^\[\]\n]*)\]\((?P<address>https?://[^()\s]+)\)")
_LINE_BREAK_TAG = re.compile(r"<br ?/?>")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_FORMULA_START = re.compile(r"\$|\\[(\[]")
_MARKUP_CHARACTERS = re.compile(r"[*_~|\\]")
_CODE_FENCE = re.compile(r"[`~]{3,}")
_HORIZONTAL_RULE = "⸻"
_TOKEN_TYPES_TO_CONVERT = frozenset(
    {"table_open", "math_block", "hr", "fence", "heading_open", "inline"}
)


@text_cache(128)
def to_discord_markdown(source: str) -> str:
    """Convert Markdown to the dialect that Discord displays; most texts stay unchanged."""
    if _UNSUPPORTED_MARKUP.search(source) is None:
        return source
    lines = source.split("\n")
    output_lines: list[str] = []
    next_line_index = 0
    for token in parse_markdown(source):
        start_line, end_line = token.map or (-1, -1)
        if start_line < next_line_index or token.type not in _TOKEN_TYPES_TO_CONVERT:
            continue
        output_lines += lines[next_line_index:start_line]
        output_lines += _convert_block(token, lines[start_line:end_line])
        next_line_index = end_line
    converted_text = "\n".join([*output_lines, *lines[next_line_index:]]).strip("\n")
    return converted_text if is_visible(converted_text) else source


def _convert_block(token: Token, lines: Sequence[str]) -> list[str]:
    match token.type:
        case "table_open":
            return _to_code_block(style_markdown("\n".join(lines)).text)
        case "math_block":
            return _to_code_block(tex_to_unicode(token.content))
        case "hr":
            return [_HORIZONTAL_RULE]
        case "fence":
            return _use_backtick_fences(token, lines)
        case "heading_open":
            return [_DEEP_HEADING.sub(_to_bold_heading, line) for line in lines]
        case _:
            return _convert_paragraph("\n".join(lines)).split("\n")


def _to_code_block(text: str) -> list[str]:
    return ["```", text.replace("```", "`\u200b``"), "```"]


def _use_backtick_fences(token: Token, lines: Sequence[str]) -> list[str]:
    """Return a code block's lines with fences of backticks, the only ones Discord supports."""
    output_lines = list(lines)
    if token.markup.startswith("~") and "```" not in token.content:
        for index in {0, len(lines) - 1}:
            output_lines[index] = _CODE_FENCE.sub("```", lines[index], count=1)
    return output_lines


def _to_bold_heading(match: re.Match[str]) -> str:
    text = match["text"]
    bold_text = text if "**" in text or not text else f"**{text}**"
    return f"{match['before']}{bold_text}"


def _convert_paragraph(text: str) -> str:
    text = _TASK_MARKER.sub(
        lambda one: f"{one['before']}{'☐' if one['done'] == ' ' else '☑'} ", text
    )
    pieces, position = [], 0
    for code in _INLINE_CODE.finditer(text):
        pieces += [_convert_inline(text[position : code.start()]), code[0]]
        position = code.end()
    return "".join([*pieces, _convert_inline(text[position:])])


def _convert_inline(text: str) -> str:
    text = _PICTURE_LINK.sub(lambda match: f"[{match['label'] or '🖼'}]({match['address']})", text)
    return _convert_formulas(_LINE_BREAK_TAG.sub("\n", text))


def _convert_formulas(text: str) -> str:
    pieces, copied_end, position = [], 0, 0
    while start_match := _FORMULA_START.search(text, position):
        formula = find_formula(text, start_match.start(), len(text))
        position = start_match.end()
        if formula is not None:
            tex, position = formula
            unicode_formula = tex_to_unicode(tex)
            needs_code_style = (
                _MARKUP_CHARACTERS.search(unicode_formula) and "`" not in unicode_formula
            )
            pieces += [
                text[copied_end : start_match.start()],
                f"`{unicode_formula}`" if needs_code_style else unicode_formula,
            ]
            copied_end = position
    return "".join([*pieces, text[copied_end:]])
