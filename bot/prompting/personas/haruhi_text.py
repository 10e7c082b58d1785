"""From the way ChatHaruhi 2 wrote dialogues to the plain one of ChatHaruhi 3."""

import re

_SPEAKER = r"^[^\n:：「」]*[:：][ \t]*"
# The closing bracket stands at the end of a line, before the next speaker opens one.
_BRACKETED = re.compile(
    rf"({_SPEAKER})「((?:(?!{_SPEAKER}「)[\s\S])*?)」(?=[ \t\r]*$)", re.MULTILINE
)


def strip_dialogue_brackets(text: str) -> str:
    """Take the brackets off that stand around all that somebody says: `春日: 「早！」`."""
    return _BRACKETED.sub(r"\1\2", text)
