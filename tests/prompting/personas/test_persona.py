"""Placeholders of a persona are parsed and filled with stories."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.prompting.haruhi import strip_dialogue_brackets
from bot.prompting.persona import (
    Placeholder,
    build_roleplay_prompt,
    fill_placeholders,
    format_roleplay_prompt,
    parse_persona,
)
from tests.prompting.samples import words

TABLES = json.loads((Path(__file__).parent / "personas.json").read_text("utf-8"))
A, B, C, D = (Story(number, text, 1.0) for number, text in enumerate("abcd"))


def fill_persona(
    text: str, found: Mapping[str, Sequence[Story]] | None, tokens: int | None = None
) -> str:
    return fill_placeholders(
        parse_persona(text), found, message="hi", tokens=tokens, counter=words
    ).text


@pytest.mark.parametrize("line", TABLES["limits"])
def test_limits_of_several_stories_may_be_in_any_order(line: str) -> None:
    assert parse_persona(line).placeholders == (
        Placeholder(0, max_stories=2, max_tokens=9, takes_oversized=False),
    )


@pytest.mark.parametrize("arguments", ["", "token<=9", "n<=2", "token<=1.5|n<=2", "n<=2|n<=3"])
def test_missing_limit_error_states_the_line_number(arguments: str) -> None:
    with pytest.raises(CharacterError, match=r"line 2 of the persona: .* missing"):
        parse_persona(f"P\n{{{{RAG-dialogues|{arguments}}}}}")


@pytest.mark.parametrize("line", TABLES["invalid"])
def test_text_that_looks_like_a_placeholder_is_reported_and_kept(line: str) -> None:
    persona = parse_persona(line)

    assert persona.placeholders == ()
    assert persona.problems[0].startswith("line 1 of the persona: ")
    assert fill_persona(line, {}) == line


@pytest.mark.parametrize("line", ["{{RAG对话}}{{RAG对话}}", "{{RAG多对话|token<=9|n<=2|happy}}"])
def test_ignored_placeholders_and_limits_are_reported(line: str) -> None:
    persona = parse_persona(line)

    assert len(persona.placeholders) == 1
    assert len(persona.problems) == 1


@pytest.mark.parametrize(("rule", "text", "found", "tokens", "made"), TABLES["filled"])
def test_stories_replace_placeholders(
    rule: str, text: str, found: list[str] | None, tokens: int | None, made: str
) -> None:
    stories = None if found is None else {"hi": [Story(at, one, 1) for at, one in enumerate(found)]}

    assert fill_persona(text, stories, tokens) == made, rule


@pytest.mark.parametrize(("text", "queries"), TABLES["queries"])
def test_queries_request_enough_stories_to_avoid_repetition(
    text: str, queries: dict[str, int]
) -> None:
    assert parse_persona(text).list_story_queries("hi") == queries


def test_stories_and_names_are_not_expanded_again() -> None:
    story = Story(1, "{{role}} and {{RAG-dialogue}}", 1)

    made = build_roleplay_prompt(
        parse_persona("{{角色}}, {{user}}\n{{RAG-dialogue}}"),
        {"hi": [story]},
        role_name="{{user}}",
        user_name="{{role}}",
        message="hi",
        max_input_tokens=None,
        counter=words,
    )

    assert made.stories == (story,)
    persona = "{{user}}, {{role}}\n###\n{{user}} and {{RAG-dialogue}}"
    assert made.text == format_roleplay_prompt("{{user}}", persona)


@given(st.text(alphabet="{}|RAG对话多-dialogues<=n token5\n", max_size=80))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        persona = parse_persona(text)
    except CharacterError:
        return
    lines = text.split("\n")
    assert all("{{RAG" in lines[placeholder.line_index] for placeholder in persona.placeholders)
    # Without stories, every other line stays as it was.
    after = fill_persona(text, {}).split("\n")
    changed = {placeholder.line_index for placeholder in persona.placeholders}
    assert all(after[at] == line for at, line in enumerate(lines) if at not in changed)
    assert all(after[at] == "" for at in changed)


@given(
    lines_with_placeholders=st.lists(
        st.one_of(
            st.just("{{RAG-dialogue}}"),
            st.builds(
                "{{{{RAG-dialogues|n<={}|token<={}}}}}".format,
                st.integers(-1, 5),
                st.integers(-1, 30),
            ),
        ),
        max_size=4,
    ),
    lengths=st.lists(st.integers(0, 12), max_size=12),
    tokens=st.integers(-5, 60) | st.none(),
)
def test_limits_are_respected_and_no_story_is_repeated(
    lines_with_placeholders: list[str], lengths: list[int], tokens: int | None
) -> None:
    stories = [Story(at, " ".join("w" * length), 1.0) for at, length in enumerate(lengths)]
    persona = parse_persona("\n".join(lines_with_placeholders))

    made = fill_placeholders(persona, {"hi": stories}, message="hi", tokens=tokens, counter=words)

    ids = [story.id for story in made.stories]
    assert ids == sorted(set(ids))
    assert len(ids) <= persona.list_story_queries("hi").get("hi", 0)
    several = [
        placeholder for placeholder in persona.placeholders if not placeholder.takes_oversized
    ]
    assume(len(several) == len(persona.placeholders))
    spent = sum(words([story.text for story in made.stories]))
    assert tokens is None or spent <= max(tokens, 0)
    if len(several) == 1 and several[0].max_tokens > 0:
        assert spent <= several[0].max_tokens


@pytest.mark.parametrize(("before", "after"), TABLES["brackets"])
def test_brackets_around_utterances_are_removed(before: str, after: str) -> None:
    assert strip_dialogue_brackets(before) == after
