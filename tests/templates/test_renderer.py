"""The choice of template, render process, and stop strings for a prompt."""

import pytest

from bot.chat.prompt import Message, TemplateChoice
from bot.errors import RenderUnavailable, TemplateError
from bot.templates import get
from bot.templates.control_tokens import TextSpan
from bot.templates.registry import FAMILY_BY_SHA256, detect_family
from bot.templates.renderer import ModelTemplate, Renderer
from tests.templates.published_templates import published_templates

HI = (Message("system", "You are Nora."), Message("user", "Hi"))
TAGGED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}<me>"
NO_TEMPLATE = ModelTemplate()


def has_render_processes(renderer: Renderer) -> bool:
    return renderer._pool is not None


async def test_named_template_renders_in_this_process(renderer: Renderer) -> None:
    rendered = await renderer.render(HI, TemplateChoice(named="qwen2.5"), NO_TEMPLATE)

    asked = [{"role": each.role, "content": each.content} for each in HI]
    assert rendered.text == get("qwen2.5")().render(asked, add_generation_prompt=True)
    assert rendered.stop == ("<|im_end|>",)
    assert not has_render_processes(renderer)


async def test_untrusted_template_renders_in_a_render_process(renderer: Renderer) -> None:
    for choice, model_template in (
        (TemplateChoice(source=TAGGED), NO_TEMPLATE),
        (TemplateChoice(), ModelTemplate(TAGGED)),
    ):
        rendered = await renderer.render(HI, choice, model_template)

        assert rendered.text == "<system>You are Nora.</system><user>Hi</user><me>"
        assert TextSpan("Hi", trusted=False) in rendered.spans
        assert rendered.stop == ("</assistant>",)
    assert has_render_processes(renderer)


async def test_model_without_a_template_gets_chatml(renderer: Renderer) -> None:
    rendered = await renderer.render(HI, TemplateChoice(), NO_TEMPLATE)

    assert rendered.text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert rendered.stop == ("<|im_end|>",)


async def test_prefilled_answer_is_left_open(renderer: Renderer) -> None:
    talk = (*HI, Message("assistant", "Sure, <|im_end|>: "))
    rendered = await renderer.render(talk, TemplateChoice(), NO_TEMPLATE, has_prefill=True)

    assert rendered.text.endswith("<|im_start|>assistant\nSure, <|im_end|>:")
    assert rendered.spans[-1] == TextSpan("Sure, <|im_end|>:", trusted=False)


async def test_known_model_template_renders_as_its_family_in_this_process(
    renderer: Renderer,
) -> None:
    published = published_templates()["llama3.1"]
    model_template = ModelTemplate(published.source, "<begin>", "<eot>")

    rendered = await renderer.render(HI, TemplateChoice(), model_template)

    assert rendered.text.startswith("<begin><|start_header_id|>system")
    assert not has_render_processes(renderer)


async def test_string_template_headings_are_stop_strings(renderer: Renderer) -> None:
    plain = await renderer.render(
        HI, TemplateChoice(strings={"end_template": "Nora: "}), NO_TEMPLATE
    )
    assert plain.text == "System: You are Nora.\n\nUser: Hi\n\nNora: "
    assert plain.stop == ("\nUser:",)

    phi = {
        "user_template": "<|user|>\n{{user}}<|end|>",
        "assistant_template": "<|assistant|>\n{{assistant}}<|end|>",
        "end_template": "<|assistant|>",
    }
    marked = await renderer.render(HI[1:], TemplateChoice(strings=phi), NO_TEMPLATE)
    assert marked.text == "<|user|>\nHi<|end|>\n<|assistant|>"
    assert marked.stop == ("<|end|>",)


async def test_untrusted_text_in_content_parts_is_located(renderer: Renderer) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{% for part in m.content %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>"
        "{% endfor %}"
    )
    choice = TemplateChoice(source=source)

    rendered = await renderer.render([Message("user", "a<|im_end|>b")], choice, ModelTemplate())

    assert rendered.text == "<|im_start|>user:a<|im_end|>b<|im_end|>"
    assert [span.text for span in rendered.spans if not span.trusted] == ["a<|im_end|>b"]
    assert rendered.stop == ("<|im_end|>",)


@pytest.mark.parametrize(
    ("trims", "expected"), [(True, "<user>Hi</user>"), (False, "<user> Hi\n</user>")]
)
async def test_message_texts_are_trimmed_on_request(
    renderer: Renderer, trims: bool, expected: str
) -> None:
    choice = TemplateChoice(source=TAGGED, trim_inputs=trims)

    rendered = await renderer.render((Message("user", " Hi\n"),), choice, NO_TEMPLATE)

    assert rendered.text == expected + "<me>"


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
async def test_error_of_a_failing_template_states_the_cause(
    renderer: Renderer, source: str, why: str
) -> None:
    with pytest.raises(TemplateError, match=why):
        await renderer.render(HI, TemplateChoice(source=source), NO_TEMPLATE)


async def test_interrupted_probe_fails_the_render_and_is_not_cached(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = TemplateChoice(source=TAGGED)
    monkeypatch.setattr("bot.templates.render_pool.ANSWER_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(RenderUnavailable):
        await renderer.render(HI, choice, NO_TEMPLATE)
    monkeypatch.undo()

    rendered = await renderer.render(HI, choice, NO_TEMPLATE)

    assert rendered.text == "<system>You are Nora.</system><user>Hi</user><me>"
    assert rendered.stop == ("</assistant>",)


def test_every_known_template_hash_belongs_to_a_published_template() -> None:
    families = {detect_family(published.source) for published in published_templates().values()}

    assert set(FAMILY_BY_SHA256.values()) <= families
    assert detect_family("{{ messages }}") is None
