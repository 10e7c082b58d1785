"""Convert text, buttons and menus for Telegram; formatting becomes entities with UTF-16 offsets.

Mentions (`@name`) are changed so that nobody is notified.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter

from aiogram.enums import MessageEntityType
from aiogram.types import MessageEntity

from bot.chat.outgoing import Button, Menu, MenuOption
from bot.markup.styled_text import EMPHASIS_STYLES, Style, StyledSpan, StyledText, style_markdown
from bot.platforms.telegram.limits import plain_text

_MENTION_PATTERN = re.compile(r"(?<!\w)@[A-Za-z][A-Za-z0-9_]{2,31}")
_MAX_ENTITIES = 100  # Telegram ignores any further entities
# By importance: a message with too many entities keeps those that hide text or can be tapped.
_ENTITY_TYPES_BY_STYLE: Mapping[Style, MessageEntityType] = {
    Style.SPOILER: MessageEntityType.SPOILER,
    Style.CODE_BLOCK: MessageEntityType.PRE,
    Style.LINK: MessageEntityType.TEXT_LINK,
    Style.QUOTE: MessageEntityType.BLOCKQUOTE,
    Style.CODE: MessageEntityType.CODE,
    Style.BOLD: MessageEntityType.BOLD,
    Style.STRIKETHROUGH: MessageEntityType.STRIKETHROUGH,
    Style.ITALIC: MessageEntityType.ITALIC,
}
_STYLES_IMPORTANT_FIRST = list(_ENTITY_TYPES_BY_STYLE)
_CODE_STYLES = frozenset({Style.CODE, Style.CODE_BLOCK})
_CODE_LANGUAGE = re.compile(r"[\w+#.-]{1,32}")
_VALUE_SEPARATOR = "="
"""Separates a menu's data from the chosen option in callback data."""
_CHOSEN_OPTION_PREFIX = "✓ "


def render_markdown(
    source: str, max_entities: int = _MAX_ENTITIES, *, keep_links: bool = True
) -> tuple[str, list[MessageEntity] | None]:
    """Convert Markdown to text and entities (None if there are none); mentions become code."""
    styled_text = style_markdown(source) if keep_links else style_markdown(source, keep_links=False)
    styled_text = _limit_spans(_defuse_mentions(styled_text), max_entities)
    if not styled_text.spans:
        return styled_text.text, None
    utf16_offsets = _utf16_offsets(styled_text.text)
    return styled_text.text, [_to_entity(one, utf16_offsets) for one in styled_text.spans]


def _limit_spans(source: StyledText, max_spans: int) -> StyledText:
    """Keep the `max_spans` most important spans; defuse mentions that lose their code style."""
    if len(source.spans) <= max_spans:
        return source
    ranked_spans = sorted(source.spans, key=lambda one: _STYLES_IMPORTANT_FIRST.index(one.style))
    spans = sorted(ranked_spans[:max_spans], key=lambda one: (one.start, -one.end))
    code = {at for one in spans if one.style in _CODE_STYLES for at in range(one.start, one.end)}
    text = _MENTION_PATTERN.sub(
        lambda match: match[0] if match.start() in code else _unlink_mention(match), source.text
    )
    return StyledText(text, tuple(spans))


def _unlink_mention(mention_match: re.Match[str]) -> str:
    return f"\uff20{mention_match[0][1:]}"


def render_with_fold(
    source: str, folded_text: str, *, keep_links: bool = True
) -> tuple[str, list[MessageEntity]]:
    """Convert Markdown, followed by plain text that stays folded until a reader expands it.

    Return the whole text and its entities, the last of which is the folded part.
    """
    text, entities = render_markdown(source, _MAX_ENTITIES - 1, keep_links=keep_links)
    text_above = f"{text.rstrip()}\n\n" if text.strip() else ""
    text_below = _MENTION_PATTERN.sub(_unlink_mention, folded_text)
    fold_entity = MessageEntity(
        type=MessageEntityType.EXPANDABLE_BLOCKQUOTE,
        offset=_utf16_offsets(text_above)[-1],
        length=_utf16_offsets(text_below)[-1],
    )
    return text_above + text_below, [*(entities or []), fold_entity]


def render_plain(source: str) -> str:
    """Convert Markdown to plain text without entities, in which mentions notify nobody."""
    return _MENTION_PATTERN.sub(_unlink_mention, plain_text(source))


def _defuse_mentions(styled_text: StyledText) -> StyledText:
    if "@" not in styled_text.text:
        return styled_text
    text, spans = styled_text.text, list(styled_text.spans)
    for mention in _MENTION_PATTERN.finditer(styled_text.text):
        start, end = mention.span()
        overlapping_spans = [one for one in spans if one.start < end and start < one.end]
        code_spans = [one for one in overlapping_spans if one.style in _CODE_STYLES]
        if any(one.start <= start and end <= one.end for one in code_spans):
            continue
        # Code that covers only part of the name does not help, and spoilers and links cannot
        # contain code. So replace the @ by a similar character.
        if code_spans or any(one.style in {Style.SPOILER, Style.LINK} for one in overlapping_spans):
            text = f"{text[:start]}\uff20{text[start + 1 :]}"
            continue
        spans = [piece for one in spans for piece in _remove_range(one, start, end)]
        spans.append(StyledSpan(Style.CODE, start, end))
    visible_spans = [one for one in spans if not text[one.start : one.end].isspace()]
    visible_spans.sort(key=lambda one: (one.start, -one.end))
    return StyledText(text, tuple(visible_spans))


def _remove_range(span: StyledSpan, start: int, end: int) -> Iterator[StyledSpan]:
    if span.style not in EMPHASIS_STYLES or span.end <= start or end <= span.start:
        yield span
        return
    if span.start < start:
        yield replace(span, end=start)
    if end < span.end:
        yield replace(span, start=end)


def _to_entity(span: StyledSpan, utf16_offsets: Sequence[int]) -> MessageEntity:
    start, end = utf16_offsets[span.start], utf16_offsets[span.end]
    language_match = _CODE_LANGUAGE.match(span.detail) if span.style is Style.CODE_BLOCK else None
    return MessageEntity(
        type=_ENTITY_TYPES_BY_STYLE[span.style],
        offset=start,
        length=end - start,
        url=span.detail if span.style is Style.LINK else None,
        language=language_match[0] if language_match else None,
    )


def _utf16_offsets(text: str) -> Sequence[int]:
    """Return the UTF-16 offset of each character of a text, and of the text's end."""
    if text.isascii() or max(text) <= "\uffff":
        return range(len(text) + 1)
    return [0, *accumulate(2 if char > "\uffff" else 1 for char in text)]


def to_keyboard(buttons: Sequence[Button], menus: Sequence[Menu] = ()) -> dict[str, object] | None:
    """Return a keyboard with a row per menu option, then the button rows; None if it is empty."""
    if not (buttons or menus):
        return None
    rows = itertools.groupby(sorted(buttons, key=attrgetter("row")), attrgetter("row"))
    return {
        "inline_keyboard": [
            *([_to_option_button(menu, one)] for menu in menus for one in menu.options),
            *([_to_button(one.label, one.data) for one in row] for _, row in rows),
        ]
    }


def read_callback_data(data: str) -> tuple[str, tuple[str, ...]]:
    """Split callback data into a button's or menu's data, and the options chosen from a menu."""
    menu_data, separator, value = data.partition(_VALUE_SEPARATOR)
    return menu_data, (value,) if separator else ()


def _to_option_button(menu: Menu, option: MenuOption) -> dict[str, str]:
    label = f"{_CHOSEN_OPTION_PREFIX}{option.label}" if option.is_chosen else option.label
    return _to_button(label, f"{menu.data}{_VALUE_SEPARATOR}{option.value}")


def _to_button(label: str, data: str) -> dict[str, str]:
    return {"text": label, "callback_data": data}
