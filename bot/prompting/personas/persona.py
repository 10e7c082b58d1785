"""A persona with places for stories: which ones to look for, and what it reads with them in place.

The rules are those of ChatHaruhi 3.0 (SEEDS.md, 003). A line of a persona that holds one of

    {{RAG对话}}  {{RAG-dialogue}}                          the story nearest to what was just said
    {{RAG对话|happy}}  {{RAG-dialogue|happy}}              ... nearest to these words instead
    {{RAG多对话|token<=1500|n<=5}}  {{RAG-dialogues|...}}   several, in at most so many tokens

gives way, as a whole, to the stories found, each under a line of `###`. Nothing here searches:

    persona = parse_persona(text)
    searches = persona.searches(newest)  # {"happy": 4}: look for "happy", 4 stories, best first
    found = {query: [Story(id, text, score), ...] for query in searches}  # None: no library
    system = build_roleplay_prompt(persona, found, role_name="Nora", user_name="Ana", newest=newest,
                             max_input_tokens=1600, count=count_tokens).text
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.prompting.text.token_counter import TextTokenCounter

_ONE = re.compile(r"\{\{(?:RAG对话|RAG-dialogue)\}\}")
_ONE_BY_QUERY = re.compile(r"\{\{(?:RAG对话|RAG-dialogue)\|([^{}]*)\}\}")
_SEVERAL = re.compile(r"\{\{(?:RAG多对话|RAG-dialogues)\|([^{}]*)\}\}")
_LIMIT = re.compile(r"\s*(token|n)\s*<=\s*(-?\d+)\s*")

_ANY = re.compile(r"\{\{RAG[^{}]*\}\}")
_MEANT = re.compile(r"[{｛]{2}\s*RAG", re.IGNORECASE)
_NAMES = re.compile(r"\{\{(role|角色|user|用户)\}\}")

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A line that gives way to stories."""

    line: int  # from 0
    query: str | None = None  # None: what was just said
    stories: int = 1  # at most
    tokens: int = UNLIMITED  # at most, together; below 1: as many as the prompt has room for
    at_least_one: bool = True  # however long that one is

    def query_for(self, newest: str) -> str:
        """What to look for; ChatHaruhi's word for the newest message is "default"."""
        named = self.query is not None and self.query.strip() not in {"", "default"}
        return self.query if named and self.query else newest


@dataclass(frozen=True, slots=True)
class Persona:
    """A persona that has been read."""

    source: str
    placeholders: tuple[Placeholder, ...]
    problems: tuple[str, ...]  # what looks like a placeholder and is none, for people to read

    def story_queries(self, newest: str) -> dict[str, int]:
        """Each query with the number of stories that it takes to fill every place.

        A story is told once, so a query needs as many as all the places before it may take, too.
        """
        needed: dict[str, int] = {}
        so_far = 0
        for place in self.placeholders:
            if place.stories > 0:
                so_far += place.stories
                needed[place.query_for(newest)] = so_far
        return needed


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with its stories in place, and which ones those are, in the order of the text."""

    text: str
    stories: tuple[Story, ...]


def parse_persona(text: str) -> Persona:
    """Find the placeholders; one a line counts.

    Raises:
        CharacterError: `token<=` or `n<=` of a placeholder is missing or no whole number.
    """
    placeholders: list[Placeholder] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n")):
        place, problem = _read_line(line, number)
        if place:
            placeholders.append(place)
        if problem:
            problems.append(f"line {number + 1} of the persona: {problem}")
    return Persona(text, tuple(placeholders), tuple(problems))


def build_roleplay_prompt(
    persona: Persona,
    found: Mapping[str, Sequence[Story]] | None,
    *,
    role_name: str,
    user_name: str | None,
    newest: str,
    max_input_tokens: int | None,
    count: TextTokenCounter,
) -> FilledText:
    """Make the whole system prompt. Several stories get the tokens that `newest` leaves free."""
    left = None
    if max_input_tokens is not None and found:  # only stories ask for it
        left = max_input_tokens - sum(count([persona.source, newest]))
    filled = fill_placeholders(persona, found, newest=newest, tokens=left, count=count)
    named = fill_names(filled.text, role_name, user_name)
    return FilledText(system_prompt(role_name, named), filled.stories)


def fill_placeholders(
    persona: Persona,
    found: Mapping[str, Sequence[Story]] | None,
    *,
    newest: str,
    tokens: int | None,
    count: TextTokenCounter,
) -> FilledText:
    """Put the stories in place. `found` is by query, best first; None drops the lines instead.

    `tokens` is what all stories may cost together (None: anything). The first story that does
    not fit ends a place; a place for one story takes the best one whatever it costs.
    """
    lines = persona.source.split("\n")
    if found is None:
        return FilledText("\n".join(line for line in lines if not _ANY.search(line)), ())
    told: dict[int, Story] = {}
    for place in persona.placeholders:
        fresh = [s for s in found.get(place.query_for(newest), ()) if s.id not in told]
        chosen, cost = _choose(place, fresh, tokens, count)
        tokens = None if tokens is None else tokens - cost
        told |= {story.id: story for story in chosen}
        lines[place.line] = "\n".join(f"###\n{story.text.strip()}" for story in chosen)
    return FilledText("\n".join(lines), tuple(told.values()))


def fill_names(text: str, role_name: str, user_name: str | None) -> str:
    """Replace `{{role}} {{角色}}`, and `{{user}} {{用户}}` if somebody's name is known."""
    names = {"role": role_name, "角色": role_name, "user": user_name, "用户": user_name}
    return _NAMES.sub(lambda match: names[match[1]] or match[0], text)


def system_prompt(role_name: str, persona: str) -> str:
    """The words that the models of Haruhi-Zero were trained with."""
    return (
        f"You are now in roleplay conversation mode. Pretend to be {role_name} "
        f"whose persona follows:\n{persona}\n\n"
        "You will stay in-character whenever possible, "
        f"and generate responses as if you were {role_name}"
    )


def _read_line(line: str, number: int) -> tuple[Placeholder | None, str | None]:
    """The line's placeholder, and what is odd about it; the plain form counts before the others."""
    if not _MEANT.search(line):
        return None, None
    problem = "only one placeholder for stories counts" if len(_ANY.findall(line)) > 1 else None
    if _ONE.search(line):
        return Placeholder(number), problem
    if match := _ONE_BY_QUERY.search(line):
        return Placeholder(number, match[1]), problem
    if match := _SEVERAL.search(line):
        limits, unknown = _limits(match[1], number)
        place = Placeholder(number, None, limits["n"], limits["token"], at_least_one=False)
        return place, f"{unknown} is no limit" if unknown else problem
    return None, (
        f"{line.strip()!r} looks for no stories; write {{{{RAG-dialogue}}}}, "
        "{{RAG-dialogue|words}} or {{RAG-dialogues|token<=1500|n<=5}}"
    )


def _limits(arguments: str, number: int) -> tuple[dict[str, int], str | None]:
    """token<=1500|n<=5, in any order, and the first argument that is neither."""
    limits: dict[str, int] = {}
    unknown = None
    for argument in arguments.split("|"):
        match = _LIMIT.fullmatch(argument)
        if match and match[1] not in limits:
            limits[match[1]] = int(match[2])
        else:
            unknown = unknown or repr(argument.strip())
    if missing := [name for name in ("token", "n") if name not in limits]:
        raise CharacterError(
            f"line {number + 1} of the persona: {' and '.join(missing)} missing "
            f"in {arguments!r}; write {{{{RAG-dialogues|token<=1500|n<=5}}}}"
        )
    return limits, unknown


def _choose(
    place: Placeholder, stories: Sequence[Story], tokens: int | None, count: TextTokenCounter
) -> tuple[Sequence[Story], int]:
    """The best of these that a place has room for, and what they cost."""
    best = stories[: max(place.stories, 0)]
    costs = count([story.text for story in best]) if best else ()
    if tokens is None or 0 < place.tokens < tokens:
        tokens = place.tokens if place.tokens > 0 else None
    kept = spent = 0
    for cost in costs:
        fits = tokens is None or spent + cost <= tokens
        if not fits and not (place.at_least_one and not kept):
            break
        kept += 1
        spent += cost
    return best[:kept], spent
