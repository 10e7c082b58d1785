"""Control words in people's text: found in a template, broken where they cannot be told apart."""

import re
from collections.abc import Iterable
from functools import lru_cache

from jinja2 import nodes

from bot.templates.jinja.jinja_template import JinjaTemplate
from bot.templates.jinja.sandbox import ENVIRONMENT
from bot.templates.lmdeploy.role_template import ROLE_TEXT_KEYS, BaseTemplate
from bot.templates.string_template import StringTemplate

ChatTemplate = JinjaTemplate | BaseTemplate | StringTemplate

WORD_JOINER = "\u2060"  # takes no room and, unlike the zero-width space, breaks no line

_CUTTING = frozenset(("split", "rsplit", "partition", "rpartition", "replace"))
# The shapes of control words: <|im_end|>, <｜User｜>, <start_of_turn>, </s>, <<SYS>>, [INST].
_TOKEN = re.compile(r"<<[^<>\s]{1,30}>>|<[^<>\s]{1,60}>|\[/?[A-Z][A-Z0-9_]{1,40}\]|\[g?MASK\]")
# ... and the headings that stand for them in older models: `### Instruction:`, `USER:`.
_HEADING = re.compile(r"^[ \t]*((?:#{1,4} )?[^\W\d_][\w ]{0,30}[:：])[ \t]*$", re.MULTILINE)


def markers(template: ChatTemplate) -> tuple[str, ...]:
    """Return the words by which a template tells its roles apart, longest first."""
    match template:
        case JinjaTemplate():
            tokens = (template.bos_token, template.eos_token)
            found = {*_words_of_source(template.source), *tokens}
        case StringTemplate():
            found = {*template.keywords, template.end_template.strip()}
        case _:
            values = (
                value for name, value in vars(template).items() if name.strip("_") in ROLE_TEXT_KEYS
            )
            texts = [value for value in values if isinstance(value, str)]
            found = {word for text in texts for word in _words_of_text(text)}
            found.update(template.stop_words or ())
    return tuple(sorted((word for word in found if len(word) > 1), key=_longest_first))


def cuts(template: ChatTemplate) -> tuple[str, ...]:
    """Return the words at which a template takes people's text apart, `</think>` for example."""
    if not isinstance(template, JinjaTemplate):
        return ()
    return tuple(sorted(_cuts_of_source(template.source), key=_longest_first))


def _longest_first(word: str) -> tuple[int, str]:
    return -len(word), word


@lru_cache(maxsize=256)
def _words_of_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [str(node.value) for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return frozenset(word for text in texts for word in _words_of_text(text))


@lru_cache(maxsize=256)
def _cuts_of_source(source: str) -> frozenset[str]:
    tree = ENVIRONMENT.parse(source)
    named: dict[str, nodes.Node] = {
        one.target.name: one.node
        for one in tree.find_all(nodes.Assign)
        if isinstance(one.target, nodes.Name)
    }
    given = [
        argument
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _CUTTING
        for argument in call.args
    ]
    values = [named.get(one.name, one) if isinstance(one, nodes.Name) else one for one in given]
    texts = [one.value for one in values if isinstance(one, nodes.Const)]
    return frozenset(text.strip() for text in texts if isinstance(text, str)) - {""}


def _words_of_text(text: str) -> Iterable[str]:
    yield from _TOKEN.findall(text)
    yield from _HEADING.findall(text)


def leading_control_token(text: str) -> str | None:
    """Return the control word that a text begins with, if it does."""
    found = _TOKEN.match(text)
    return found[0] if found else None


def break_control_tokens(text: str, words: Iterable[str]) -> str:
    """Put an invisible character into each of `words` in `text`, in whatever case they stand.

    What people see stays the same; what a tokenizer sees is not a control word any more.
    """
    breakable = (word for word in words if len(word) > 1 and WORD_JOINER not in word)
    alternatives = "|".join(map(re.escape, breakable))
    if not alternatives:
        return text
    pattern = re.compile(alternatives, re.IGNORECASE)
    while pattern.search(text):  # breaking one may leave another that overlapped it
        text = pattern.sub(lambda found: found[0][0] + WORD_JOINER + found[0][1:], text)
    return text
