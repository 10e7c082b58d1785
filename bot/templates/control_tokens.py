"""Find a template's control tokens, and prevent people's texts from containing any.

A rendered prompt is split into spans of template text and of people's text.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice
from typing import Any

from jinja2 import nodes

from bot.errors import TemplateError
from bot.templates.jinja_template import ENVIRONMENT, JinjaTemplate, Message
from bot.templates.role_template import ROLE_TEXT_KEYS, BaseTemplate, StringTemplate
from bot.value_class import value_class

ChatTemplate = JinjaTemplate | BaseTemplate | StringTemplate

WORD_JOINER = "\u2060"  # invisible and, unlike a zero-width space, not a line break

_SPLITTING_METHODS = frozenset(("split", "rsplit", "partition", "rpartition", "replace"))
# Forms of control tokens: <|im_end|>, <｜User｜>, <start_of_turn>, </s>, <<SYS>>, [INST].
_CONTROL_TOKEN_PATTERN = re.compile(
    r"<<[^<>\s]{1,30}>>|<[^<>\s]{1,60}>|\[/?[A-Z][A-Z0-9_]{1,40}\]|\[g?MASK\]"
)
# Older models have headings instead: `### Instruction:`, `USER:`.
_ROLE_HEADING = re.compile(r"^[ \t]*((?:#{1,4} )?[^\W\d_][\w ]{0,30}[:：])[ \t]*$", re.MULTILINE)


def find_control_tokens(template: ChatTemplate) -> tuple[str, ...]:
    """Return the control tokens that a template writes, longest first."""
    match template:
        case JinjaTemplate():
            special_tokens = (template.bos_token, template.eos_token)
            tokens = {*_tokens_in_source(template.source), *special_tokens}
        case StringTemplate():
            tokens = {*template.fixed_texts, template.end_template.strip()}
        case _:
            texts = [getattr(template, name, None) or "" for name in ROLE_TEXT_KEYS]
            tokens = {token for text in texts for token in _tokens_in_text(text)}
            tokens.update(template.stop_words or ())
    return tuple(sorted((token for token in tokens if len(token) > 1), key=_longest_first_key))


def find_split_separators(template: ChatTemplate) -> tuple[str, ...]:
    """Return the strings at which a template splits messages, such as `</think>`, longest first."""
    if not isinstance(template, JinjaTemplate):
        return ()
    return tuple(sorted(_separators_in_source(template.source), key=_longest_first_key))


def _longest_first_key(text: str) -> tuple[int, str]:
    return -len(text), text


@lru_cache(maxsize=256)
def _tokens_in_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [str(node.value) for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return frozenset(token for text in texts for token in _tokens_in_text(text))


@lru_cache(maxsize=256)
def _separators_in_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    assigned_values: dict[str, nodes.Node] = {
        node.target.name: node.node
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name)
    }
    arguments = [
        argument
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SPLITTING_METHODS
        for argument in call.args
    ]
    values = [
        assigned_values.get(node.name, node) if isinstance(node, nodes.Name) else node
        for node in arguments
    ]
    texts = [node.value for node in values if isinstance(node, nodes.Const)]
    return frozenset(text.strip() for text in texts if isinstance(text, str)) - {""}


def _tokens_in_text(text: str) -> Iterable[str]:
    yield from _CONTROL_TOKEN_PATTERN.findall(text)
    yield from _ROLE_HEADING.findall(text)


def leading_control_token(text: str) -> str | None:
    match = _CONTROL_TOKEN_PATTERN.match(text)
    return match[0] if match else None


def break_control_tokens(text: str, tokens: Iterable[str]) -> str:
    """Insert an invisible character into each of `tokens` in a text, ignoring case."""
    breakable_tokens = (token for token in tokens if len(token) > 1 and WORD_JOINER not in token)
    token_alternatives = "|".join(map(re.escape, breakable_tokens))
    if not token_alternatives:
        return text
    pattern = re.compile(token_alternatives, re.IGNORECASE)
    while pattern.search(text):  # breaking one token may leave another that overlapped it
        text = pattern.sub(lambda match: match[0][0] + WORD_JOINER + match[0][1:], text)
    return text


UNTRUSTED_FIELDS = ("content", "name", "reasoning_content", "thinking")
PRIVATE_USE_CODE_POINTS = range(0xF0000, 0x10FFFE)
RenderMessages = Callable[[Sequence[Message]], str]
MarkText = Callable[[str, str, str], str]


@value_class
class TextSpan:
    """A part of a prompt that comes from the template or from people."""

    text: str
    trusted: bool
    """False for people's text, which must not yield control tokens."""


def render_spans(
    template: ChatTemplate, messages: Sequence[Message], **options: Any
) -> list[TextSpan]:
    """Render a conversation as spans, whose joined texts are the prompt.

    If people's texts cannot be located because the template changes them, control tokens in them
    are broken up before rendering, and the prompt contains invisible characters. `options` are
    passed to the template's `render`.
    """

    def render(chat_messages: Sequence[Message]) -> str:
        return render_messages(template, chat_messages, **options)

    tokens = find_control_tokens(template)
    prompt = render(messages)
    separators = find_split_separators(template)
    for mark_text in (_mark_whole_text, _mark_stripped_text, _make_mark_text_between(separators)):
        spans = _locate_texts(render, messages, prompt, mark_text, tokens)
        if spans is not None:
            return spans
    break_tokens = partial(break_control_tokens, tokens=tokens)
    messages = [_change_texts(message, break_tokens) for message in messages]
    prompt = render(messages)
    return _locate_texts(render, messages, prompt, _mark_stripped_text, tokens) or [
        TextSpan(prompt, trusted=True)
    ]


def render_messages(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str:
    """Render messages with a template of any kind; raise `TemplateError` if it cannot."""
    match template:
        case JinjaTemplate():
            return template.render(messages, **options)
        case StringTemplate():
            return template.render(messages)
        case _:
            prompt = template.messages2prompt(messages, **options)
            if prompt is None:
                raise TemplateError(
                    "this template can render only single prompts, not conversations"
                )
            return prompt


def _locate_texts(
    render: RenderMessages,
    messages: Sequence[Message],
    prompt: str,
    mark_text: MarkText,
    tokens: Sequence[str],
) -> list[TextSpan] | None:
    marks = _find_unused_marks(messages, prompt)
    if marks is None:
        return None
    try:
        output = render([
            _change_texts(message, _make_marker(mark_text, *texts), _make_marker(mark_text, *names))
            for message, texts, names in zip(messages, marks[::2], marks[1::2], strict=True)
        ])  # fmt: skip
    except TemplateError:
        return None
    mark_codes = [ord(mark) for pair in marks for mark in pair]
    parts = re.split(f"({_character_class(mark_codes)})", output) if mark_codes else [output]
    if "".join(parts[::2]) != prompt:
        return None
    return _parse_marks(parts, dict(marks), tokens)


def _parse_marks(
    parts: Sequence[str], closing_marks: Mapping[str, str], tokens: Sequence[str]
) -> list[TextSpan] | None:
    spans = [TextSpan(parts[0], trusted=True)]
    previous_mark, expected_mark = "", ""
    for mark, text in zip(parts[1::2], parts[2::2], strict=True):
        if expected_mark:
            if mark != expected_mark:
                return None
            spans.append(TextSpan(text, trusted=True))
            expected_mark = ""
        else:
            if mark not in closing_marks:
                return None
            expected_mark = closing_marks[mark]
            if previous_mark == expected_mark and any(token in spans[-1].text for token in tokens):
                # This control token is between two parts of a message, so people wrote it.
                spans[-1] = TextSpan(spans[-1].text, trusted=False)
            spans.append(TextSpan(text, trusted=False))
        previous_mark = mark
    if expected_mark:
        return None
    return _merge_neighbors(spans)


def _merge_neighbors(spans: Iterable[TextSpan]) -> list[TextSpan]:
    nonempty_spans = (span for span in spans if span.text)
    return [
        TextSpan("".join(span.text for span in group), is_trusted)
        for is_trusted, group in groupby(nonempty_spans, key=lambda span: span.trusted)
    ]


def _change_texts(
    message: Message, change: Callable[[str], str], change_name: Callable[[str], str] | None = None
) -> Message:
    changed_message: dict[str, Any] = dict(message)
    for field in UNTRUSTED_FIELDS:
        value = message.get(field)
        if isinstance(value, str):
            change_field = change_name if field == "name" and change_name else change
            changed_message[field] = change_field(value)
        elif field == "content" and isinstance(value, list | tuple):
            changed_message[field] = [
                {**part, "text": change(part["text"])}
                if isinstance(part, Mapping) and isinstance(part.get("text"), str)
                else part
                for part in value
            ]
    return changed_message


def _make_marker(mark_text: MarkText, begin: str, end: str) -> Callable[[str], str]:
    return lambda text: mark_text(text, begin, end)


def _mark_whole_text(text: str, begin: str, end: str) -> str:
    return f"{begin}{text}{end}" if text.strip() else text


def _mark_stripped_text(text: str, begin: str, end: str) -> str:
    body = text.strip()
    indent = len(text) - len(text.lstrip())
    return f"{text[:indent]}{begin}{body}{end}{text[indent + len(body) :]}" if body else text


def _make_mark_text_between(separators: Sequence[str]) -> MarkText:
    pattern = re.compile("(" + "|".join(map(re.escape, separators)) + ")") if separators else None

    def mark_text(text: str, begin: str, end: str) -> str:
        parts = pattern.split(text) if pattern else [text]
        return "".join(
            part if index % 2 else _mark_stripped_text(part, begin, end)
            for index, part in enumerate(parts)
        )

    return mark_text


def _character_class(code_points: Sequence[int]) -> str:
    """Return a regex character class for ascending code points; runs become ranges, for speed."""
    range_groups = groupby(enumerate(code_points), key=lambda pair: pair[1] - pair[0])
    bounds = [(run[0][1], run[-1][1]) for _, positions in range_groups if (run := list(positions))]
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in bounds) + "]"


def _find_unused_marks(messages: Sequence[Message], prompt: str) -> list[tuple[str, str]] | None:
    """Return two pairs of unused characters for each message, or None if there are too few."""
    used_chars = set(prompt + json.dumps(messages, ensure_ascii=False, default=str))
    free_marks = (mark for mark in map(chr, PRIVATE_USE_CODE_POINTS) if mark not in used_chars)
    marks = list(islice(free_marks, 4 * len(messages)))
    if len(marks) < 4 * len(messages):
        return None
    return list(zip(marks[::2], marks[1::2], strict=True))
