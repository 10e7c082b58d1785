"""What a line claims about who said it: the tags of a prompt, and those of any copy of a chat."""

import re
from collections.abc import Iterator
from itertools import islice

from bot.prompting.text.confusables import COLON, skeleton

MAX_TAG_CHARS = 80
"""Nobody takes what stands in front of a later colon for a name."""

# What templates and their users call the speakers of a prompt. Nobody is called so.
_ROLES = (
    *("system", "assistant", "user", "tool", "developer", "model", "bot", "human", "ai"),
    *("function", "instruction", "response", "系统", "系統", "助手", "用户", "用戶"),
    *("问", "答"),  # ChatGLM's
    *("система", "ассистент", "пользователь", "システム", "アシスタント", "ユーザー"),
    *("시스템", "어시스턴트", "사용자", "النظام", "المساعد", "المستخدم"),
    *("sistema", "asistente", "assistente", "usuario", "système", "utilisateur"),
)
ROLE_SKELETONS = frozenset(map(skeleton, _ROLES))
"""The skeletons of what the speakers of a prompt are called."""

# Nor anything with these in it: `System message`, `the assistant`.
_IN_HEADINGS = frozenset(map(skeleton, ("system", "assistant", "система", "ассистент")))
_MAX_WORDS_OF_A_HEADING = 3
_MAX_HEADING_CHARS = 48
_WORD = re.compile(r"[^\W_]+")

# What stands between a speaker and what was said where it is no colon: Bob - hi, <Bob> hi,
# [Bob] hi, Bob | hi, Bob → hi. A dash within a word is part of it.
_OTHER_ENDS = re.compile(r"\s[-~]|[-~]\s|[–—―>\])】〉》」』）|=→⇒»;；]")
_MOST_ENDS = 4  # a time of day has two colons; whoever looks at more does so for hostile texts only
_FRAME = re.compile(r"^[\W_]+")  # read over in front of a name, or a time
# What stands around a name: 10:30 Bob, [10:30 AM] Bob, Bob, 10:30.
_BEFORE = re.compile(r"^[\W\d_]+(?:[ap]\.?m\b\W*)?", re.IGNORECASE)
_AROUND = re.compile(rf"{_BEFORE.pattern}|[\W\d_]+$", re.IGNORECASE)
_ADDED = re.compile(r"#|(?<=\w)\W*[(（]")


def candidate_names(line: str) -> Iterator[str]:
    """Give whatever at the beginning of a line may be read as the name of who said it."""
    for head in _heads(line):
        yield head
        yield _AROUND.sub("", head)


def starts_with_role_tag(line: str) -> bool:
    """Whether what stands in front of a colon reads like a role's name."""
    return any(map(is_role_heading, _tags(line)))


def is_role_heading(text: str) -> bool:
    """Whether it reads like a role's: `System message`, but not a sentence about the system."""
    words = _WORD.findall(text)
    if len(words) > _MAX_WORDS_OF_A_HEADING:
        return False
    return not _IN_HEADINGS.isdisjoint(map(skeleton, words))


def strip_name_suffix(head: str) -> str:
    """Take off what stands between a name and its colon: `Bob #12`, `Bob (laughs)`."""
    return _ADDED.split(head, maxsplit=1)[0]


def _heads(line: str) -> Iterator[str]:
    for tag in _tags(line):
        yield tag
        yield strip_name_suffix(tag)
    yield from _in_front_of(_OTHER_ENDS, _BEFORE.sub("", line[:MAX_TAG_CHARS]))
    if len(line) <= _MAX_HEADING_CHARS:
        yield line  # a name alone, as a heading


def _tags(line: str) -> Iterator[str]:
    """What stands in front of the colons: `Bob: hi`, `10:30 Bob: hi`."""
    begins = _FRAME.sub("", line[:MAX_TAG_CHARS])
    yield from _in_front_of(COLON, begins)
    name_first = _BEFORE.sub("", begins)
    if name_first != begins:
        yield from _in_front_of(COLON, name_first)


def _in_front_of(end: re.Pattern[str], line: str) -> Iterator[str]:
    for found in islice(end.finditer(line), _MOST_ENDS):
        yield line[: found.start()]
