"""Detect speaker tags: those of our prompts, and those of any chat log that people paste."""

import re
from collections.abc import Iterator
from itertools import islice

from bot.prompting.text.confusables import COLON, skeleton

MAX_TAG_CHARS = 80
"""What precedes a later colon is not read as a name."""

# Role names of chat templates, which no person may have.
_ROLES = (
    *("system", "assistant", "user", "tool", "developer", "model", "bot", "human", "ai"),
    *("function", "instruction", "response", "系统", "系統", "助手", "用户", "用戶"),
    *("问", "答"),  # ChatGLM's
    *("система", "ассистент", "пользователь", "システム", "アシスタント", "ユーザー"),
    *("시스템", "어시스턴트", "사용자", "النظام", "المساعد", "المستخدم"),
    *("sistema", "asistente", "assistente", "usuario", "système", "utilisateur"),
)
ROLE_SKELETONS = frozenset(map(skeleton, _ROLES))
"""The skeletons of role names."""

# Words that make a short text a role name: `System message`, `the assistant`.
_ROLE_WORDS = frozenset(map(skeleton, ("system", "assistant", "система", "ассистент")))
_MAX_HEADING_WORDS = 3
_MAX_HEADING_CHARS = 48
_WORD = re.compile(r"[^\W_]+")

# Separators of name and text other than a colon: Bob - hi, <Bob> hi, [Bob] hi, Bob | hi,
# Bob → hi. A dash within a word is part of the word.
_OTHER_SEPARATORS = re.compile(r"\s[-~]|[-~]\s|[–—―>\])】〉》」』）|=→⇒»;；]")
_MAX_SEPARATORS = 4  # a time of day has two colons; more occur in hostile texts only
_LEADING_PUNCTUATION = re.compile(r"^[\W_]+")
# Times and punctuation around a name: 10:30 Bob, [10:30 AM] Bob, Bob, 10:30.
_BEFORE = re.compile(r"^[\W\d_]+(?:[ap]\.?m\b\W*)?", re.IGNORECASE)
_AROUND = re.compile(rf"{_BEFORE.pattern}|[\W\d_]+$", re.IGNORECASE)
_NAME_SUFFIX = re.compile(r"#|(?<=\w)\W*[(（]")


def candidate_names(line: str) -> Iterator[str]:
    """Yield every text at the beginning of a line that may be read as the name of its speaker."""
    for head in _heads(line):
        yield head
        yield _AROUND.sub("", head)


def starts_with_role_tag(line: str) -> bool:
    """Whether the text before a colon reads like a role name."""
    return any(map(is_role_heading, _tags(line)))


def is_role_heading(text: str) -> bool:
    """Whether a text reads like a role name: `System message`, but no sentence about the system."""
    words = _WORD.findall(text)
    if len(words) > _MAX_HEADING_WORDS:
        return False
    return not _ROLE_WORDS.isdisjoint(map(skeleton, words))


def strip_name_suffix(head: str) -> str:
    """Remove what stands between a name and its colon: `Bob #12`, `Bob (laughs)`."""
    return _NAME_SUFFIX.split(head, maxsplit=1)[0]


def _heads(line: str) -> Iterator[str]:
    for tag in _tags(line):
        yield tag
        yield strip_name_suffix(tag)
    yield from _texts_before(_OTHER_SEPARATORS, _BEFORE.sub("", line[:MAX_TAG_CHARS]))
    if len(line) <= _MAX_HEADING_CHARS:
        yield line  # a name alone on its line, as a heading


def _tags(line: str) -> Iterator[str]:
    """Yield the texts before the colons: `Bob: hi`, `10:30 Bob: hi`."""
    start = _LEADING_PUNCTUATION.sub("", line[:MAX_TAG_CHARS])
    yield from _texts_before(COLON, start)
    name_first = _BEFORE.sub("", start)
    if name_first != start:
        yield from _texts_before(COLON, name_first)


def _texts_before(separator: re.Pattern[str], line: str) -> Iterator[str]:
    for found in islice(separator.finditer(line), _MAX_SEPARATORS):
        yield line[: found.start()]
