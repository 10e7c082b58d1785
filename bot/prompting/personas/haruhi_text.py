"""Convert dialogues from the form of ChatHaruhi 2 to the plain one of ChatHaruhi 3."""

import re

_SPEAKER = r"^[^\n:：「」]*[:：][ \t]*"
# The closing bracket is at the end of a line, before the next speaker's opening one.
_BRACKETED = re.compile(
    rf"({_SPEAKER})「((?:(?!{_SPEAKER}「)[\s\S])*?)」(?=[ \t\r]*$)", re.MULTILINE
)


def strip_dialogue_brackets(text: str) -> str:
    """Remove the brackets around whole utterances: `春日: 「早！」` becomes `春日: 早！`."""
    return _BRACKETED.sub(r"\1\2", text)
