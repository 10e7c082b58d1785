"""Parse the story placeholders in a persona, and replace them with stories.

The rules are those of ChatHaruhi 3.0 (docs/sources.md#haruhi). A line of a persona that contains

    {{RAG对话}}  {{RAG-dialogue}}                          (the story nearest to the newest message)
    {{RAG对话|happy}}  {{RAG-dialogue|happy}}              (the story nearest to this query)
    {{RAG多对话|token<=1500|n<=5}}  {{RAG-dialogues|...}}   (several stories within a token limit)

is replaced as a whole with the stories found, each below a `###` line. Callers search for the
`list_story_queries` themselves.
"""

import re
from collections.abc import Mapping, Sequence

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.ports import TextTokenCounter
from bot.texts.text import Text, join_texts, translatable
from bot.value_class import value_class

_ONE_STORY_PLACEHOLDER = re.compile(r"\{\{(?:RAG对话|RAG-dialogue)\}\}")
_ONE_STORY_QUERY_PLACEHOLDER = re.compile(r"\{\{(?:RAG对话|RAG-dialogue)\|([^{}]*)\}\}")
_SEVERAL_STORIES_PLACEHOLDER = re.compile(r"\{\{(?:RAG多对话|RAG-dialogues)\|([^{}]*)\}\}")
_LIMIT_ARGUMENT = re.compile(r"\s*(token|n)\s*<=\s*(-?\d+)\s*")

_ANY_PLACEHOLDER = re.compile(r"\{\{RAG[^{}]*\}\}")
_PLACEHOLDER_LOOKALIKE = re.compile(r"[{｛]{2}\s*RAG", re.IGNORECASE)
_NAME_PLACEHOLDER = re.compile(r"\{\{(role|角色|user|用户)\}\}")

NO_LIMIT = -1
DEFAULT_PLACEHOLDER = "{{RAG多对话|token<=1000|n<=5}}"
"""The story placeholder for characters whose persona contains none."""


@value_class
class Placeholder:
    """A line of a persona to be replaced with stories."""

    line_index: int
    query: str | None = None
    """The search query, or None for the newest message."""
    max_stories: int = 1
    max_tokens: int = NO_LIMIT
    """The token limit for all its stories; if less than 1, the tokens left in the prompt."""
    takes_oversized: bool = True
    """Whether to insert the first story even if it exceeds the limit."""

    def build_query(self, message: str) -> str:
        """Return this placeholder's own query or, if it is missing or "default", the message."""
        has_query = self.query is not None and self.query.strip() not in {"", "default"}
        return self.query if has_query and self.query else message


@value_class
class Persona:
    source: str
    placeholders: tuple[Placeholder, ...]
    problems: tuple[str, ...]
    """Warnings about texts that look like placeholders but are not valid."""

    def list_story_queries(self, message: str) -> dict[str, int]:
        """Return each search query with the number of stories needed to fill all placeholders.

        Each story is inserted only once, so a query must also return enough stories to skip those
        of earlier placeholders.
        """
        story_counts: dict[str, int] = {}
        story_count = 0
        for placeholder in self.placeholders:
            if placeholder.max_stories > 0:
                story_count += placeholder.max_stories
                story_counts[placeholder.build_query(message)] = story_count
        return story_counts


@value_class
class FilledText:
    """A text, and the stories that were inserted into it."""

    text: str
    stories: tuple[Story, ...]


def parse_persona(text: str) -> Persona:
    """Find a persona's placeholders, at most one per line; raise `CharacterError` if invalid."""
    placeholders: list[Placeholder] = []
    problems: list[Text] = []
    for number, line in enumerate(text.split("\n")):
        placeholder, problem = _parse_line(line, number)
        if placeholder:
            placeholders.append(placeholder)
        if problem:
            problems.append(
                translatable(
                    "line {number} of the persona: {problem}", number=number + 1, problem=problem
                )
            )
    return Persona(text, tuple(placeholders), tuple(problems))


def build_roleplay_prompt(
    persona: Persona,
    stories_by_query: Mapping[str, Sequence[Story]] | None,
    *,
    role_name: str,
    user_name: str | None,
    message: str,
    max_input_tokens: int | None,
    counter: TextTokenCounter,
) -> FilledText:
    """Build the system prompt; stories may use the tokens that persona and `message` leave."""
    budget = None
    if max_input_tokens is not None and stories_by_query:  # only stories need the limit
        budget = max_input_tokens - sum(counter([persona.source, message]))
    filled_text = fill_placeholders(
        persona, stories_by_query, message=message, tokens=budget, counter=counter
    )
    persona_text = fill_names(filled_text.text, role_name, user_name)
    return FilledText(format_roleplay_prompt(role_name, persona_text), filled_text.stories)


def fill_placeholders(
    persona: Persona,
    stories_by_query: Mapping[str, Sequence[Story]] | None,
    *,
    message: str,
    tokens: int | None,
    counter: TextTokenCounter,
) -> FilledText:
    """Replace placeholders with the best stories for their queries, up to `tokens` in total.

    A placeholder is filled until a story does not fit, but a placeholder for one story takes the
    best story, however long. If `stories_by_query` is None, lines with placeholders are removed.
    """
    persona_lines = persona.source.split("\n")
    if stories_by_query is None:
        other_lines = (line for line in persona_lines if not _ANY_PLACEHOLDER.search(line))
        return FilledText("\n".join(other_lines), ())
    used_stories: dict[int, Story] = {}
    for placeholder in persona.placeholders:
        stories = stories_by_query.get(placeholder.build_query(message), ())
        unused_stories = [story for story in stories if story.id not in used_stories]
        chosen_stories, used_tokens = _choose_stories(placeholder, unused_stories, tokens, counter)
        tokens = None if tokens is None else tokens - used_tokens
        used_stories |= {story.id: story for story in chosen_stories}
        story_blocks = (f"###\n{story.text.strip()}\n" for story in chosen_stories)
        persona_lines[placeholder.line_index] = "".join(story_blocks).strip()
    return FilledText("\n".join(persona_lines), tuple(used_stories.values()))


def fill_names(text: str, role_name: str, user_name: str | None) -> str:
    """Replace `{{role}}`, `{{角色}}` and, if the user's name is known, `{{user}}`, `{{用户}}`."""
    names = {"role": role_name, "角色": role_name, "user": user_name, "用户": user_name}
    return _NAME_PLACEHOLDER.sub(lambda match: names[match[1]] or match[0], text)


def format_roleplay_prompt(role_name: str, persona: str) -> str:
    """Return the system prompt on which Haruhi-Zero models were trained."""
    return (
        f"You are now in roleplay conversation mode. Pretend to be {role_name} "
        f"whose persona follows:\n{persona}\n\n"
        "You will stay in-character whenever possible, "
        f"and generate responses as if you were {role_name}"
    )


def _parse_line(line: str, index: int) -> tuple[Placeholder | None, Text | None]:
    if not _PLACEHOLDER_LOOKALIKE.search(line):
        return None, None
    problem = None
    if len(_ANY_PLACEHOLDER.findall(line)) > 1:
        problem = translatable("of several placeholders in a line, only one is used")
    if _ONE_STORY_PLACEHOLDER.search(line):
        return Placeholder(index), problem
    if match := _ONE_STORY_QUERY_PLACEHOLDER.search(line):
        return Placeholder(index, match[1]), problem
    if match := _SEVERAL_STORIES_PLACEHOLDER.search(line):
        limits, unknown_argument = _parse_limits(match[1], index)
        placeholder = Placeholder(index, None, limits["n"], limits["token"], takes_oversized=False)
        limit_problem = translatable("{argument} is not a valid limit", argument=unknown_argument)
        return placeholder, limit_problem if unknown_argument else problem
    return None, translatable(
        "{line} is not a valid placeholder; write {one}, {by_words} or {several}",
        line=repr(line.strip()),
        one="{{RAG-dialogue}}",
        by_words="{{RAG-dialogue|words}}",
        several="{{RAG-dialogues|token<=1500|n<=5}}",
    )


def _parse_limits(arguments: str, line_index: int) -> tuple[dict[str, int], str | None]:
    """Parse `token<=1500|n<=5` in any order; return the limits and the first unknown argument."""
    limits_by_name: dict[str, int] = {}
    unknown_argument = None
    for argument in arguments.split("|"):
        match = _LIMIT_ARGUMENT.fullmatch(argument)
        if match and match[1] not in limits_by_name:
            limits_by_name[match[1]] = int(match[2])
        else:
            unknown_argument = unknown_argument or repr(argument.strip())
    if missing_names := [name for name in ("token", "n") if name not in limits_by_name]:
        raise CharacterError.translatable(
            "line {number} of the persona: {names} missing in {arguments}; write {example}",
            number=line_index + 1,
            names=join_texts(missing_names, translatable(" and ")),
            arguments=repr(arguments),
            example="{{RAG-dialogues|token<=1500|n<=5}}",
        )
    return limits_by_name, unknown_argument


def _choose_stories(
    placeholder: Placeholder,
    stories: Sequence[Story],
    token_budget: int | None,
    counter: TextTokenCounter,
) -> tuple[Sequence[Story], int]:
    best_stories = stories[: max(placeholder.max_stories, 0)]
    story_tokens = counter([story.text for story in best_stories]) if best_stories else ()
    if token_budget is None or 0 < placeholder.max_tokens < token_budget:
        token_budget = placeholder.max_tokens if placeholder.max_tokens > 0 else None
    chosen_count = used_tokens = 0
    for token_count in story_tokens:
        fits_budget = token_budget is None or used_tokens + token_count <= token_budget
        if not fits_budget and not (placeholder.takes_oversized and not chosen_count):
            break
        chosen_count += 1
        used_tokens += token_count
    return best_stories[:chosen_count], used_tokens
