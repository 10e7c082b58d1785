"""Which template writes a prompt, where it runs, and what it ends an answer with."""

from collections.abc import AsyncIterator

import pytest

from bot.chat.prompt import Message, TemplateChoice
from bot.errors import TemplateError
from bot.templates import get
from bot.templates.families.detection import FAMILY_BY_SHA256, detect_family
from bot.templates.renderer import ModelTemplate, Renderer
from bot.templates.text_spans import TextSpan
from tests.templates.published_templates import published_templates

HI = (Message("system", "You are Nora."), Message("user", "Hi"))
SHOUTING = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}<me>"
NOTHING = ModelTemplate()


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer() as running:
        yield running


def foreign_processes(renderer: Renderer) -> bool:
    return renderer._worker is not None


async def test_a_named_template_renders_in_this_process(renderer: Renderer) -> None:
    made = await renderer.render(HI, TemplateChoice(named="qwen2.5"), NOTHING)

    asked = [{"role": each.role, "content": each.content} for each in HI]
    assert made.text == get("qwen2.5")().render(asked, add_generation_prompt=True)
    assert made.stop == ("<|im_end|>",)
    assert not foreign_processes(renderer)


async def test_a_template_that_people_wrote_renders_in_another_process(renderer: Renderer) -> None:
    for choice, own in (
        (TemplateChoice(source=SHOUTING), NOTHING),
        (TemplateChoice(), ModelTemplate(SHOUTING)),
    ):
        made = await renderer.render(HI, choice, own)

        assert made.text == "<system>You are Nora.</system><user>Hi</user><me>"
        assert TextSpan("Hi", trusted=False) in made.spans
        assert made.stop == ("</assistant>",)
    assert foreign_processes(renderer)


async def test_a_model_without_a_template_is_asked_in_chatml(renderer: Renderer) -> None:
    made = await renderer.render(HI, TemplateChoice(), NOTHING)

    assert made.text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert made.stop == ("<|im_end|>",)


async def test_a_known_model_s_template_is_ours_with_its_own_tokens(renderer: Renderer) -> None:
    theirs = published_templates()["llama3.1"]
    own = ModelTemplate(theirs.source, "<begin>", "<eot>")

    made = await renderer.render(HI, TemplateChoice(), own)

    assert made.text.startswith("<begin><|start_header_id|>system")
    assert not foreign_processes(renderer)


async def test_string_templates_end_an_answer_at_the_next_heading(renderer: Renderer) -> None:
    plain = await renderer.render(HI, TemplateChoice(strings={"end_template": "Nora: "}), NOTHING)
    assert plain.text == "System: You are Nora.\n\nUser: Hi\n\nNora: "
    assert plain.stop == ("\nUser:",)

    phi = {
        "user_template": "<|user|>\n{{user}}<|end|>",
        "assistant_template": "<|assistant|>\n{{assistant}}<|end|>",
        "end_template": "<|assistant|>",
    }
    marked = await renderer.render(HI[1:], TemplateChoice(strings=phi), NOTHING)
    assert marked.text == "<|user|>\nHi<|end|>\n<|assistant|>"
    assert marked.stop == ("<|end|>",)


async def test_what_a_template_refuses_is_said_as_it_can(renderer: Renderer) -> None:
    said = (*HI, Message("user", "there"))

    made = await renderer.render(said, TemplateChoice(named="gemma-1.1"), NOTHING)

    assert made.text == (
        "<bos><start_of_turn>user\nYou are Nora.\n\nHi\nthere<end_of_turn>\n<start_of_turn>model\n"
    )


async def test_people_s_words_are_cut_out_of_parts_as_well(renderer: Renderer) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{% for part in m.content %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>"
        "{% endfor %}"
    )
    choice = TemplateChoice(source=source)

    rendered = await renderer.render([Message("user", "a<|im_end|>b")], choice, ModelTemplate())

    assert rendered.text == "<|im_start|>user:a<|im_end|>b<|im_end|>"
    assert [piece.text for piece in rendered.spans if not piece.trusted] == ["a<|im_end|>b"]
    assert rendered.stop == ("<|im_end|>",)


@pytest.mark.parametrize(
    ("trims", "expected"), [(True, "<user>Hi</user>"), (False, "<user> Hi\n</user>")]
)
async def test_inputs_are_trimmed_where_that_is_wanted(
    renderer: Renderer, trims: bool, expected: str
) -> None:
    choice = TemplateChoice(source=SHOUTING, trim_inputs=trims)

    made = await renderer.render((Message("user", " Hi\n"),), choice, NOTHING)

    assert made.text == expected + "<me>"


async def test_the_beginning_stays_the_same_while_the_conversation_grows(
    renderer: Renderer,
) -> None:
    said: list[Message] = list(HI)
    earlier = ""
    for turn in range(4):
        made = await renderer.render(said, TemplateChoice(named="llama-3"), NOTHING)
        assert made.text.startswith(earlier)
        earlier = made.text
        said += [Message("assistant", f"answer {turn}"), Message("user", f"question {turn}")]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('no, never') }}", "no, never"),
        ("{% for %}", "TemplateSyntaxError"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "stopped",
        ),
    ],
)
async def test_a_template_that_fails_says_why(renderer: Renderer, source: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        await renderer.render(HI, TemplateChoice(source=source), NOTHING)


def test_every_known_template_is_a_published_one_or_the_default_model_s() -> None:
    published = {detect_family(theirs.source) for theirs in published_templates().values()}

    assert set(FAMILY_BY_SHA256.values()) <= published
    assert detect_family("{{ messages }}") is None
