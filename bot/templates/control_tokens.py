"""Find a template's control tokens, and break them in people's texts.

Breaking is only for what cannot be told apart in another way (see `text_spans`).
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from jinja2 import nodes

from bot.templates.jinja.jinja_template import JinjaTemplate
from bot.templates.jinja.sandbox import ENVIRONMENT
from bot.templates.lmdeploy.role_template import ROLE_TEXT_KEYS, BaseTemplate
from bot.templates.string_template import StringTemplate

ChatTemplate = JinjaTemplate | BaseTemplate | StringTemplate

WORD_JOINER = "\u2060"  # invisible and, unlike the zero-width space, no place for a line break

_SPLITTING_METHODS = frozenset(("split", "rsplit", "partition", "rpartition", "replace"))
# Forms of control tokens: <|im_end|>, <｜User｜>, <start_of_turn>, </s>, <<SYS>>, [INST].
_CONTROL_TOKEN = re.compile(
    r"<<[^<>\s]{1,30}>>|<[^<>\s]{1,60}>|\[/?[A-Z][A-Z0-9_]{1,40}\]|\[g?MASK\]"
)
# ... and the headings that older models have instead: `### Instruction:`, `USER:`.
_HEADING = re.compile(r"^[ \t]*((?:#{1,4} )?[^\W\d_][\w ]{0,30}[:：])[ \t]*$", re.MULTILINE)


def control_tokens(template: ChatTemplate) -> tuple[str, ...]:
    """Return the texts by which a template marks its roles, longest first."""
    match template:
        case JinjaTemplate():
            special = (template.bos_token, template.eos_token)
            found = {*_tokens_of_source(template.source), *special}
        case StringTemplate():
            found = {*template.keywords, template.end_template.strip()}
        case _:
            values = (
                value for name, value in vars(template).items() if name.strip("_") in ROLE_TEXT_KEYS
            )
            texts = [value for value in values if isinstance(value, str)]
            found = {token for text in texts for token in _tokens_of_text(text)}
            found.update(template.stop_words or ())
    return tuple(sorted((token for token in found if len(token) > 1), key=_longest_first))


def split_separators(template: ChatTemplate) -> tuple[str, ...]:
    """Return the strings at which a template splits people's texts, such as `</think>`."""
    if not isinstance(template, JinjaTemplate):
        return ()
    return tuple(sorted(_separators_of_source(template.source), key=_longest_first))


def _longest_first(text: str) -> tuple[int, str]:
    return -len(text), text


@lru_cache(maxsize=256)
def _tokens_of_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [str(node.value) for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return frozenset(token for text in texts for token in _tokens_of_text(text))


@lru_cache(maxsize=256)
def _separators_of_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    assigned: dict[str, nodes.Node] = {
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
        assigned.get(node.name, node) if isinstance(node, nodes.Name) else node
        for node in arguments
    ]
    texts = [node.value for node in values if isinstance(node, nodes.Const)]
    return frozenset(text.strip() for text in texts if isinstance(text, str)) - {""}


def _tokens_of_text(text: str) -> Iterable[str]:
    yield from _CONTROL_TOKEN.findall(text)
    yield from _HEADING.findall(text)


def leading_control_token(text: str) -> str | None:
    """Return the control token that a text begins with, if there is one."""
    found = _CONTROL_TOKEN.match(text)
    return found[0] if found else None


def break_control_tokens(text: str, tokens: Iterable[str]) -> str:
    """Insert an invisible character into each of `tokens` in `text`, ignoring case.

    The text looks the same to people; a tokenizer finds no control token in it any more.
    """
    breakable = (token for token in tokens if len(token) > 1 and WORD_JOINER not in token)
    alternatives = "|".join(map(re.escape, breakable))
    if not alternatives:
        return text
    pattern = re.compile(alternatives, re.IGNORECASE)
    while pattern.search(text):  # breaking one may leave another that overlapped it
        text = pattern.sub(lambda found: found[0][0] + WORD_JOINER + found[0][1:], text)
    return text
