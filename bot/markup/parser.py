"""Parse the Markdown that models write: CommonMark with tables, spoilers and math, without HTML.

The parser adds the token types `spoiler_open`, `spoiler_close`, `math` and `math_block` to those
of markdown-it; the content of the last two is TeX.
"""

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from bot.texts.caches import text_cache

_SPOILER_MARK = "||"
# `$5 and $10` is money; a formula contains TeX, and no spaces next to the dollar signs.
_DOLLAR_FORMULA = re.compile(r"\$(?P<tex>(?!\s)[^$\n]+?(?<![\s\\]))\$(?![\d$])")
_TEX_SYNTAX = re.compile(r"[\\^_={}+*/<>|]|\A[A-Za-z]\Z|\A[A-Za-z]\(")
_BACKSLASH_FORMULA = re.compile(r"\\\((?P<tex>.+?)\\\)|\\\[(?P<display>.+?)\\\]", re.DOTALL)
_DOUBLE_DOLLAR_FORMULA = re.compile(r"\$\$(?P<tex>[^$]+?)\$\$", re.DOTALL)
_CLOSING_MARKS_BY_OPENING = {"$$": "$$", "\\[": "\\]"}
_MAX_NESTING = 20


def find_formula(text: str, position: int, end: int) -> tuple[str, int] | None:
    r"""Return the TeX and the end position of the formula that starts at `position`, or None.

    Formulas are written as `\(x\)`, `\[x\]`, `$x$` or `$$x$$`.
    """
    for pattern in (_BACKSLASH_FORMULA, _DOUBLE_DOLLAR_FORMULA, _DOLLAR_FORMULA):
        match = pattern.match(text, position, end)
        if match is None:
            continue
        tex = next(group for group in match.groups() if group is not None)
        if pattern is not _DOLLAR_FORMULA or _TEX_SYNTAX.search(tex):
            return tex, match.end()
    return None


def _parse_math(state: StateInline, silent: bool) -> bool:
    may_be_formula = state.src[state.pos] in "$\\"
    formula = find_formula(state.src, state.pos, state.posMax) if may_be_formula else None
    if formula is None:
        return False
    tex, formula_end = formula
    if not silent:
        state.push("math", "", 0).content = tex
    state.pos = formula_end
    return True


def _parse_spoiler(state: StateInline, silent: bool) -> bool:
    """Parse `||text||`."""
    content_start = state.pos + len(_SPOILER_MARK)
    if not state.src.startswith(_SPOILER_MARK, state.pos):
        return False
    end = state.src.find(_SPOILER_MARK, content_start, state.posMax)
    if end <= content_start or not state.src[content_start:end].strip():
        return False
    if not silent:
        state.pos, outer_pos_max = content_start, state.posMax
        state.posMax = end
        state.push("spoiler_open", "", 1)
        state.md.inline.tokenize(state)
        state.push("spoiler_close", "", -1)
        state.posMax = outer_pos_max
    state.pos = end + len(_SPOILER_MARK)
    return True


def _parse_math_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    r"""Parse lines from `$$` to `$$` or from `\[` to `\]`, or to the end if the block is open."""
    block_start = state.bMarks[start_line] + state.tShift[start_line]
    closing_mark = _CLOSING_MARKS_BY_OPENING.get(state.src[block_start : block_start + 2])
    if closing_mark is None:
        return False
    line_text = state.src[block_start + 2 : state.eMarks[start_line]].rstrip()
    if closing_mark in line_text and not line_text.endswith(closing_mark):
        return False  # a formula inside a sentence
    if silent:
        return True
    line_number, lines = start_line, [line_text.removesuffix(closing_mark)]
    while not line_text.endswith(closing_mark) and line_number + 1 < end_line:
        line_number += 1
        line_text = state.src[state.bMarks[line_number] : state.eMarks[line_number]].strip()
        lines.append(line_text.removesuffix(closing_mark))
    state.line = line_number + 1
    token = state.push("math_block", "", 0)
    token.content = "\n".join(line for line in lines if line.strip())
    token.map = [start_line, state.line]
    return True


def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
    parser.enable(["strikethrough", "table"])
    # In chats, indented text is not code, and underlined text is not a heading.
    parser.disable(["code", "lheading", "reference", "html_block", "html_inline"])
    parser.inline.add_terminator_char("|")
    parser.inline.ruler.before("escape", "math", _parse_math)
    parser.inline.ruler.before("emphasis", "spoiler", _parse_spoiler)
    parser.block.ruler.before(
        "fence", "math_block", _parse_math_block, {"alt": ["paragraph", "blockquote", "list"]}
    )
    return parser


_PARSER = _create_parser()


@text_cache(64)
def parse_markdown(text: str) -> tuple[Token, ...]:
    """Parse Markdown into tokens; they are cached, so do not modify them."""
    return tuple(_PARSER.parse(text))
