"""Read from an error what a server says of a prompt that is longer than its context."""

import re

from bot.value_class import value_class

_MIN_TOKENS = 128  # a smaller context is a misread figure
_MAX_DIGITS = 10
_NUMBER = r"(\d[\d,_']*)"
_IS = r"(?:(?:\s?(?:is|of|are|=|:|\(|only|currently|set to)){1,3}\s?)"
_LIMITS = [
    re.compile(pattern.replace("NUMBER", _NUMBER).replace("IS", _IS), re.IGNORECASE)
    for pattern in (
        r"\bn_ctx\W{1,4}NUMBER",
        r"\d \+ \d+ > NUMBER",  # Anthropic: prompt + max_tokens > context
        r"maximum (?:context|model|input|prompt|sequence)?[ _](?:length|size|window)IS?NUMBER",
        r"(?:context|sequence)[ _](?:length|size|window|limit)IS?\s?NUMBER(?! \+)",
        r"tokens allowedISNUMBER|tokens allowed \(?NUMBER",  # Gemini
        r"NUMBER (?:tokens )?(?:maximum|max\b|limit\b|context)",  # Anthropic, Mistral
        r"(?:must be <=|must have less than|cannot exceed|greater than|longer than|up to|at most)"
        r" (?:max_\w+ )?NUMBER",  # TGI, Cohere, TabbyAPI
        r"(?:limit|maximum|max\w*)IS?\s?NUMBER",  # Moonshot, Cerebras, OpenAI's tokens a minute
        r"\[\d+, ?NUMBER\]",  # DashScope
    )
]
_PROMPTS = [
    re.compile(pattern.replace("NUMBER", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"n_prompt_tokens\W{1,4}NUMBER",
        r"NUMBER (?:tokens )?(?:in|of|from) (?:the|your) (?:messages|prompt|input|text)",
        r"NUMBER (?:of )?(?:text )?input",
        r"(?:resulted in|requested(?: about)?(?: a total of)?|contains|input|request|received"
        r"|given:|length|long:|length is|count|has)\W{1,2}NUMBER",
        r"NUMBER (?:\+ \d+ |tokens )?>",
    )
]


@value_class
class TooLong:
    """How long a rejected prompt was, and may be; None where the server does not say."""

    context_tokens: int | None
    prompt_tokens: int | None


def read_too_long(body: bytes) -> TooLong:
    """Read the figures of an error."""
    text = body.decode(errors="replace")
    limit = _first(_LIMITS, text)
    return TooLong(limit, _first(_PROMPTS, text, limit))


def _first(
    patterns: list["re.Pattern[str]"], text: str, other_than: int | None = None
) -> int | None:
    for pattern in patterns:
        for match in pattern.finditer(text):
            digits = re.sub(r"\D", "", next(each for each in match.groups() if each))
            if len(digits) < _MAX_DIGITS and _MIN_TOKENS <= int(digits) != other_than:
                return int(digits)
    return None
