"""A preset and a library character with the same persona give the same system prompt."""

from collections.abc import Mapping, Sequence

import pytest

from bot.chat.prompt import Message, Prompt
from bot.chat.session import Session
from bot.chat.story import Story
from bot.prompting.character import Character
from bot.prompting.compose.compose import compose
from bot.prompting.compose.instructions import find_story_queries
from bot.prompting.draft import Draft, PromptPart
from bot.prompting.embedding import FunctionEmbedder, StoryIndex
from bot.prompting.persona import format_roleplay_prompt
from bot.prompting.presets.preset import Preset
from tests.prompting.samples import letters, preset
from tests.samples import ALICE, make_incoming

PERSONA = """\
你是{{角色}}，和{{user}}一起。
{{RAG多对话|token<=40|n<=2}}
伤心的时候:
{{RAG对话|c}}
E"""
STORIES = ["X:「a」", "X:「ab」", "X:「c」", "Y: 「abc」"]


def system_in_a_channel(
    who: Preset, text: str, stories: Mapping[str, Sequence[Story]] | None = None
) -> str:
    draft = compose(who, Session(1, ()), make_incoming(text), stories=stories)
    return draft.prompt.messages[0].content


@pytest.mark.parametrize("texts", [STORIES, []])
@pytest.mark.parametrize("tokens", [1600, 60, 1])
def test_character_and_preset_give_the_same_system_prompt(
    texts: Sequence[str], tokens: int
) -> None:
    character = Character("春日", PERSONA, texts=texts, embedding=letters, max_input_token=tokens)
    index = StoryIndex(texts, None, FunctionEmbedder(letters, letters))
    who = preset(role_name="春日", persona=PERSONA, max_input_tokens=tokens)
    found = {
        query: index.search(query, limit) for query, limit in find_story_queries(who, "aab").items()
    }

    in_library = character.get_message(ALICE.name, "aab")[0]["content"]

    assert system_in_a_channel(who, "aab", found if texts else None) == in_library


def test_system_text_precedes_the_role() -> None:
    who = preset(system="Be brief.", role_name="Nora", persona="You keep the light.")

    role = format_roleplay_prompt("Nora", "You keep the light.")
    assert system_in_a_channel(who, "hi") == f"Be brief.\n\n{role}"


def test_persona_without_role_name_is_used_verbatim() -> None:
    who = preset(persona="You are {{role}}, with {{user}}.\n{{RAG-dialogue}}")

    assert system_in_a_channel(who, "hi") == "You are nora, with Alice."


@pytest.mark.parametrize("persona", ["P", "P\n{{RAG-dialogues|token<=99|n<=2}}"])
@pytest.mark.parametrize("macros", [True, False])
def test_recent_stories_precede_the_newest_message(persona: str, *, macros: bool) -> None:
    who = preset(persona=persona, stories="recent", macros=macros)
    [query] = find_story_queries(who, "hi")
    found = {query: [Story(1, "{{user}}: 「Tea?」", 0.9), Story(2, "No.", 0.8)]}
    draft = compose(who, Session(1, ()), make_incoming("hi"), stories=found)
    first, last = draft.prompt.messages
    assert first.content.strip() == "P"
    assert last.content == "###\nAlice: Tea?\n\n###\nNo.\n\nhi"
    spans = [(one.name, one.score) for one in draft.layout if one.section == "stories"]
    assert spans == [("Alice: Tea?", 0.9), ("No.", 0.8)]


def test_each_story_has_its_own_span_in_the_layout() -> None:
    who = preset(
        role_name="Nora", system="Be brief.", persona="A\n{{RAG-dialogue}}\nB\n{{RAG-dialogue|tea}}"
    )
    stories = {
        "hi": [Story(1, "{{user}}: Light?\nNora: 「Two hundred stairs」\n", 0.9)],
        "tea": [Story(1, "told already", 0.8), Story(2, "Nora: Tea.", 0.7)],
    }
    draft = compose(who, Session(1, ()), make_incoming("hi"), stories=stories)

    text, begin, stretches = draft.prompt.messages[0].content, 0, []
    for span in draft.layout[:-1]:
        assert span.chars is not None
        stretches.append((span.section, text[begin : begin + span.chars], span.score))
        begin += span.chars

    assert begin >= len(text)
    assert [one for one in stretches if one[0] == "stories"] == [
        ("stories", "Alice: Light?\nNora: Two hundred stairs", 0.9),
        ("stories", "Nora: Tea.", 0.7),
    ]
    assert [span.name for span in draft.layout if span.name] == ["Alice: Light?", "Nora: Tea."]


def test_story_that_is_not_in_the_text_has_no_span() -> None:
    draft = Draft(
        empty_prompt=Prompt((), "m", "c"),
        system=(PromptPart("system", "Be brief."),),
        pinned_messages=(),
        summary=None,
        history=(),
        context=(),
        newest_message=Message("user", "hi"),
        stories=(Story(1, "not there", 0.5),),
    )
    assert [span.section for span in draft.layout] == ["system", "newest"]
