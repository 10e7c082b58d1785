"""Placeholders of a persona are parsed and filled with stories."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.prompting.haruhi import strip_dialogue_brackets
from bot.prompting.persona import (
    Placeholder,
    build_roleplay_prompt,
    fill_placeholders,
    parse_persona,
)
from tests.prompting.samples import words

TABLES = json.loads((Path(__file__).parent / "personas.json").read_text("utf-8"))
A, B, C, D = (Story(number, text, 1.0) for number, text in enumerate("abcd"))


def filled(
    text: str, found: Mapping[str, Sequence[Story]] | None, tokens: int | None = None
) -> str:
    return fill_placeholders(
        parse_persona(text), found, newest="hi", tokens=tokens, count=words
    ).text


@pytest.mark.parametrize("line", TABLES["limits"])
def test_limits_of_several_stories_may_be_in_any_order(line: str) -> None:
    assert parse_persona(line).placeholders == (
        Placeholder(0, stories=2, tokens=9, at_least_one=False),
    )


@pytest.mark.parametrize("arguments", ["", "token<=9", "n<=2", "token<=1.5|n<=2", "n<=2|n<=3"])
def test_missing_limit_error_names_the_line(arguments: str) -> None:
    with pytest.raises(CharacterError, match=r"line 2 of the persona: .* missing"):
        parse_persona(f"P\n{{{{RAG-dialogues|{arguments}}}}}")


@pytest.mark.parametrize("line", TABLES["invalid"])
def test_text_that_looks_like_a_placeholder_is_reported_and_kept(line: str) -> None:
    persona = parse_persona(line)

    assert persona.placeholders == ()
    assert persona.problems[0].startswith("line 1 of the persona: ")
    assert filled(line, {}) == line


@pytest.mark.parametrize("line", ["{{RAG对话}}{{RAG对话}}", "{{RAG多对话|token<=9|n<=2|happy}}"])
def test_ignored_placeholders_and_limits_are_reported(line: str) -> None:
    persona = parse_persona(line)

    assert len(persona.placeholders) == 1
    assert len(persona.problems) == 1


def test_without_stories_the_lines_are_removed() -> None:
    text = "P\n{{RAG-dialogue}}\nx {{RAG-dialogue|happy}} y\n{{RAG多对话}}\nE"

    assert filled(text, None) == "P\nE"


def test_without_a_fitting_story_the_line_is_empty() -> None:
    assert filled("P\n{{RAG-dialogue}}\nE", {"hi": []}) == "P\n\nE"


def test_queries_request_enough_stories_for_uniqueness() -> None:
    text = "{{RAG-dialogue|sad}}\n{{RAG-dialogues|token<=9|n<=2}}\n{{RAG-dialogue|sad}}"

    assert parse_persona(text).story_queries("hi") == {"sad": 4, "hi": 3}


def test_empty_query_and_default_mean_the_newest_message() -> None:
    text = "{{RAG-dialogue|}}\n{{RAG-dialogue|default}}\n{{RAG-dialogue}}"

    assert parse_persona(text).story_queries("hi") == {"hi": 3}


def test_first_story_that_does_not_fit_ends_the_placeholder() -> None:
    found = {"hi": [Story(1, "one two", 1), Story(2, "1 2 3 4", 1), Story(3, "one", 1)]}

    assert filled("{{RAG-dialogues|token<=5|n<=3}}", found) == "###\none two"
    assert filled("{{RAG-dialogues|token<=1|n<=3}}", found) == ""
    assert filled("{{RAG-dialogues|token<=0|n<=3}}", found, tokens=6) == (
        "###\none two\n###\n1 2 3 4"
    )


def test_single_story_is_inserted_however_long() -> None:
    assert filled("{{RAG-dialogue}}", {"hi": [Story(1, "one two", 1)]}, tokens=-9) == (
        "###\none two"
    )


def test_stories_and_names_are_not_expanded_again() -> None:
    story = Story(1, "{{role}} and {{RAG-dialogue}}", 1)

    made = build_roleplay_prompt(
        parse_persona("{{角色}}, {{user}}\n{{RAG-dialogue}}"),
        {"hi": [story]},
        role_name="{{user}}",
        user_name="{{role}}",
        newest="hi",
        max_input_tokens=None,
        count=words,
    )

    assert made.stories == (story,)
    assert made.text == snapshot("""\
You are now in roleplay conversation mode. Pretend to be {{user}} whose persona follows:
{{user}}, {{role}}
###
{{user}} and {{RAG-dialogue}}

You will stay in-character whenever possible, and generate responses as if you were {{user}}\
""")


@given(st.text(alphabet="{}|RAG对话多-dialogues<=n token5\n", max_size=80))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        persona = parse_persona(text)
    except CharacterError:
        return
    lines = text.split("\n")
    assert all("{{RAG" in lines[placeholder.line] for placeholder in persona.placeholders)
    # Without stories, every other line stays as it was.
    after = filled(text, {}).split("\n")
    changed = {placeholder.line for placeholder in persona.placeholders}
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
def test_limits_hold_and_no_story_is_repeated(
    lines_with_placeholders: list[str], lengths: list[int], tokens: int | None
) -> None:
    stories = [Story(at, " ".join("w" * length), 1.0) for at, length in enumerate(lengths)]
    persona = parse_persona("\n".join(lines_with_placeholders))

    made = fill_placeholders(persona, {"hi": stories}, newest="hi", tokens=tokens, count=words)

    ids = [story.id for story in made.stories]
    assert ids == sorted(set(ids))
    assert len(ids) <= persona.story_queries("hi").get("hi", 0)
    several = [placeholder for placeholder in persona.placeholders if not placeholder.at_least_one]
    assume(len(several) == len(persona.placeholders))
    spent = sum(words([story.text for story in made.stories]))
    assert tokens is None or spent <= max(tokens, 0)
    if len(several) == 1 and several[0].tokens > 0:
        assert spent <= several[0].tokens


@pytest.mark.parametrize(("before", "after"), TABLES["brackets"])
def test_brackets_around_utterances_are_removed(before: str, after: str) -> None:
    assert strip_dialogue_brackets(before) == after
