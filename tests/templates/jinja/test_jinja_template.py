"""JinjaTemplate: errors, variables, continued messages."""

from datetime import UTC, datetime

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate

HI = [{"role": "user", "content": "Hi"}]


def test_message_content_is_never_rendered_as_a_template() -> None:
    template = JinjaTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")

    assert template.render([{"role": "user", "content": "{{ 7 * 7 }}"}]) == "{{ 7 * 7 }}"


def test_error_that_a_template_makes_long_is_cut() -> None:
    """It is logged for each message, and told on the terminal."""
    for source in ("{{ raise_exception('x' * 999999) }}", "{{ {}['x' * 999999] + 1 }}"):
        with pytest.raises(TemplateError) as raised:
            JinjaTemplate(source).render([])
        assert len(str(raised.value)) < 1100


def test_raise_exception_text_is_kept() -> None:
    template = JinjaTemplate("{{ raise_exception('System role not supported') }}")

    with pytest.raises(TemplateError) as caught:
        template.render(HI)

    assert str(caught.value) == "System role not supported"


def test_other_errors_begin_with_their_type() -> None:
    with pytest.raises(TemplateError, match="UndefinedError: 'user_name' is undefined"):
        JinjaTemplate("{{ user_name + '!' }}").render(HI)


def test_syntax_error_is_raised_by_the_constructor() -> None:
    with pytest.raises(TemplateError, match="TemplateSyntaxError"):
        JinjaTemplate("{% for %}")


def test_missing_token_is_undefined_and_an_empty_one_is_defined() -> None:
    source = "{{ bos_token is defined }}"

    assert JinjaTemplate(source).render(HI) == "False"
    assert JinjaTemplate(source, bos_token="").render(HI) == "True"


def test_variables_are_passed_to_the_template() -> None:
    template = JinjaTemplate("{{ 'think' if enable_thinking else 'answer' }}")

    assert template.render(HI, enable_thinking=True) == "think"


def test_strftime_now_uses_the_given_time() -> None:
    template = JinjaTemplate("{{ strftime_now('%d %b %Y') }}")

    assert template.render(HI, now=datetime(2026, 1, 15, tzinfo=UTC)) == "15 Jan 2026"


def test_final_message_is_left_open() -> None:
    template = JinjaTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    messages = [*HI, {"role": "assistant", "content": "Once upon"}]

    assert template.render(messages, continue_final_message=True) == "<Hi><Once upon"
    assert messages[-1]["content"] == "Once upon"


def test_final_message_with_content_parts_is_left_open() -> None:
    template = JinjaTemplate("{{ messages[0].content[0].text | trim }}|")
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "Once "}]}]

    assert template.render(messages, continue_final_message=True) == "Once"


def test_leaving_a_dropped_final_message_open_is_an_error() -> None:
    with pytest.raises(TemplateError, match="does not appear"):
        JinjaTemplate("nothing").render(HI, continue_final_message=True)


@pytest.mark.parametrize("key", ["reasoning_content", "thinking"])
def test_reasoning_is_available_under_both_keys(key: str) -> None:
    template = JinjaTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")

    assert template.render([{"role": "assistant", "content": "", key: "hm"}]) == "hmhm"
