"""Run a preset's untrusted regex scripts, which find and replace text, in limited time."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import regex
from pydantic import Field, field_validator

from bot.prompting.lorebook.entries import RegexTimeBudget, compile_key
from bot.prompting.presets.fields import StrictModel
from bot.texts.text import Text, translatable

_MAX_SECONDS_PER_SCRIPT = 0.05
_MAX_GROWTH_FACTOR = 4  # a result may be this many times as long, plus the next limit
_MAX_ADDED_CHARS = 20_000
_GROUP_REFERENCE = regex.compile(r"\$(?:(\d{1,2})|<([^<>]+)>)")
_MATCH_PLACEHOLDER = regex.compile(r"\{\{match\}\}", regex.IGNORECASE)


def find_pattern_problem(word: str) -> Text | None:
    """Return why a regular expression, `/pattern/flags`, is invalid, or None if it is valid."""
    problem = compile_key(word)
    if not isinstance(problem, str):
        return None
    return translatable("{word} cannot be used: {problem}", word=repr(word), problem=problem)


class RegexScript(StrictModel):
    """A replacement, as in SillyTavern's Regex extension."""

    name: str = ""
    find: Annotated[str, Field(min_length=1)]
    """A regular expression, `/pattern/flags`; without `g` only the first match is replaced."""
    replace: str = ""
    """The replacement, which may contain `$1`, `$<name>`, `{{match}}`, and macros."""
    trim: tuple[str, ...] = ()
    """Texts to remove from the matched text."""

    @field_validator("find")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        if problem := find_pattern_problem(pattern):
            raise ValueError(problem)
        return pattern


def run_scripts(
    scripts: Sequence[RegexScript], text: str, expand: Callable[[str], str] = str
) -> str:
    """Run all replacements on a text; `expand` expands the macros in them, not in the text."""
    time_budget = RegexTimeBudget()
    for script in scripts:
        if time_budget.seconds_left <= 0:
            break
        started_at = time.thread_time()
        with suppress(TimeoutError):
            text = _run_script(
                script, text, expand, min(_MAX_SECONDS_PER_SCRIPT, time_budget.seconds_left)
            )
        time_budget.seconds_left -= time.thread_time() - started_at
    return text


def _run_script(
    script: RegexScript, text: str, expand: Callable[[str], str], seconds: float
) -> str:
    pattern = compile_key(script.find)
    if isinstance(pattern, str):
        return text

    def build_replacement(match: regex.Match[str]) -> str:
        def insert_group(reference: regex.Match[str]) -> str:
            group = reference[2] or int(reference[1])
            group_exists = group in match.re.groupindex or group in range(match.re.groups + 1)
            group_text = match[group] if group_exists else ""
            for unwanted_text in script.trim:
                group_text = (group_text or "").replace(unwanted_text, "")
            return group_text or ""

        replacement: str = _GROUP_REFERENCE.sub(
            insert_group, expand(_MATCH_PLACEHOLDER.sub("$0", script.replace))
        )
        return replacement

    is_global = "g" in script.find.rpartition("/")[2]
    result: str = pattern.sub(build_replacement, text, count=0 if is_global else 1, timeout=seconds)
    return result if len(result) <= _MAX_GROWTH_FACTOR * len(text) + _MAX_ADDED_CHARS else text
