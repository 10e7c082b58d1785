"""Render messages as HTML for the playground, escaping the texts of people and models."""

import re
from collections.abc import Mapping, Sequence
from zlib import crc32

from markupsafe import Markup

from bot.chat.answers import StoredAnswer
from bot.chat.command import ButtonAction
from bot.chat.outgoing import Button
from bot.chat.web_channel import WebMessage
from bot.markup.styled_text import Style, StyledSpan, StyledText, style_markdown
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_HTML_TAGS: Mapping[Style, str] = {
    Style.BOLD: "strong",
    Style.ITALIC: "em",
    Style.STRIKETHROUGH: "s",
    Style.CODE: "code",
    Style.QUOTE: "q",
}
_LINK_HTML = Markup('<a href="{}" rel="noreferrer noopener" target="_blank">{}</a>')
_STYLES_WITHOUT_LINKS = frozenset({Style.LINK, Style.CODE, Style.CODE_BLOCK})
_URL_PATTERN = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:!?)\]]")
_MAX_QUOTE_CHARS = 80
_MAX_COMPARED_CHARS = 200
_FACE_COLOR_COUNT = 10
_BUTTON_LABELS: Mapping[str, Text] = {
    ButtonAction.STOP: translatable("Stop"),
    ButtonAction.RETRY: translatable("Retry"),
    ButtonAction.CONTINUE: translatable("Continue"),
    ButtonAction.DELETE: translatable("Delete"),
}
"""Button labels in the reader's language; messages have them in the asker's language."""
_BOT_NAME = "Troupe"  # the speaker of messages without a character


@value_class
class MessageView:
    message: WebMessage
    name: str
    color: int
    html: Markup
    quote: str
    """The beginning of the replied-to message; empty if this message is not a reply."""
    toolbar_buttons: Sequence[tuple[Button, str, Text | str]]
    """Buttons of the toolbar, with their actions and labels."""
    version_buttons: Sequence[Button]
    """Buttons that show another version of the answer."""
    other_buttons: Sequence[tuple[Button, Text | str]]
    """All other buttons, with their labels."""
    answer: StoredAnswer | None
    """The stored answer; None if the message is not an answer, or its answer is not stored."""

    @property
    def is_writing(self) -> bool:
        """Whether the answer is still being written, and therefore has a stop button."""
        return self.message.author is None and not is_finished(self.message)


def view_message(
    message: WebMessage,
    messages: Mapping[str, WebMessage],
    answers: Sequence[StoredAnswer] = (),
    names: Sequence[str] = (),
) -> MessageView:
    """Return a message for the page; `messages` holds the channel's other messages, by id."""
    name = _find_author_name(message)
    replied_message = messages.get(message.reply_to or "")
    quote = ""
    if message.author is not None and replied_message is not None:
        line = " ".join(replied_message.text.split())
        ellipsis = " …" if len(line) > _MAX_QUOTE_CHARS else ""
        quote = f"{_find_author_name(replied_message)}: {line[:_MAX_QUOTE_CHARS]}{ellipsis}"
    is_from_bot = message.author is None
    styled_text = style_markdown(message.text) if is_from_bot else StyledText(message.text)
    spans, length = list(styled_text.spans), len(styled_text.text)
    html = _render_html(styled_text, spans, 0, length, linkify=is_from_bot)
    toolbar_buttons, version_buttons, other_buttons = [], [], []
    for button in message.buttons:
        action = button.data.partition(":")[0].rstrip("0123456789")
        label = _BUTTON_LABELS.get(action, button.label)
        if action in _BUTTON_LABELS and len(message.buttons) > 1:
            toolbar_buttons.append((button, action, label))
        elif action == ButtonAction.VERSION:
            version_buttons.append(button)
        else:
            other_buttons.append((button, label))
    answer = _find_answer(message, answers) if is_finished(message) else None
    color = choose_color(name, names)
    return MessageView(
        message, name, color, html, quote, toolbar_buttons, version_buttons, other_buttons, answer
    )


def is_finished(message: WebMessage) -> bool:
    """Return whether a message is a complete answer of the bot, without a stop button."""
    stop = f"{ButtonAction.STOP}:"
    return message.author is None and not any(one.data.startswith(stop) for one in message.buttons)


def _find_answer(message: WebMessage, answers: Sequence[StoredAnswer]) -> StoredAnswer | None:
    """Find the answer whose text begins the message; if several do, the closest in time."""

    def compute_seconds_apart(answer: StoredAnswer) -> float:
        return abs(answer.at - answer.receipt.timings.seconds - message.at.timestamp())

    answer_texts = ((one, one.receipt.answer.strip()[:_MAX_COMPARED_CHARS]) for one in answers)
    matches = [one for one, text in answer_texts if text and message.text.startswith(text)]
    return min(matches, key=compute_seconds_apart, default=None)


def choose_color(name: str, names: Sequence[str] = ()) -> int:
    """Return a color number for a name; if possible, one that no other name in `names` has."""
    return (names.index(name) if name in names else crc32(name.encode())) % _FACE_COLOR_COUNT


def _find_author_name(message: WebMessage) -> str:
    speaker = message.author or message.face
    return speaker.name if speaker is not None else _BOT_NAME


def _render_html(
    styled_text: StyledText, spans: list[StyledSpan], start: int, end: int, *, linkify: bool = True
) -> Markup:
    """Render a range of the text as HTML; `spans` are its styles, which may be nested.

    With `linkify`, URLs in the text become links, as on chat platforms.
    """
    escape_text = _link_urls if linkify else Markup.escape
    html, at = Markup(), start
    while spans:
        span = spans.pop(0)
        inner_spans = [one for one in spans if one.start < span.end]
        spans = spans[len(inner_spans) :]
        html += escape_text(styled_text.text[at : span.start])
        may_link = linkify and span.style not in _STYLES_WITHOUT_LINKS
        inner_html = _render_html(styled_text, inner_spans, span.start, span.end, linkify=may_link)
        html += _to_element(span, inner_html)
        at = span.end
    return html + escape_text(styled_text.text[at:end])


def _link_urls(text: str) -> Markup:
    html, at = Markup(), 0
    for match in _URL_PATTERN.finditer(text):
        html += Markup.escape(text[at : match.start()]) + _LINK_HTML.format(match[0], match[0])
        at = match.end()
    return html + Markup.escape(text[at:])


def _to_element(span: StyledSpan, content: Markup) -> Markup:
    match span.style:
        case Style.CODE_BLOCK:
            return Markup('<code class="block">{}</code>').format(content)
        case Style.SPOILER:
            return Markup('<span class="spoiler" tabindex="0">{}</span>').format(content)
        case Style.LINK if span.detail.startswith(("https://", "http://")):
            return _LINK_HTML.format(span.detail, content)
        case Style.LINK:
            return content
        case style:
            return Markup("<{0}>{1}</{0}>").format(Markup(_HTML_TAGS[style]), content)  # noqa: S704
