"""JinjaTemplate: errors, variables, continued messages."""

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate

HI = [{"role": "user", "content": "Hi"}]


def test_message_content_is_never_rendered_as_a_template() -> None:
    template = JinjaTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")

    assert template.render([{"role": "user", "content": "{{ 7 * 7 }}"}]) == "{{ 7 * 7 }}"


def test_long_template_error_is_truncated() -> None:
    """The error is logged for each message and shown in the terminal."""
    for source in ("{{ raise_exception('x' * 999999) }}", "{{ {}['x' * 999999] + 1 }}"):
        with pytest.raises(TemplateError) as raised:
            JinjaTemplate(source).render([])
        assert len(str(raised.value)) < 1100


def test_syntax_error_is_raised_by_the_constructor() -> None:
    with pytest.raises(TemplateError, match="TemplateSyntaxError"):
        JinjaTemplate("{% for %}")


def test_continuing_a_message_that_the_template_drops_is_an_error() -> None:
    with pytest.raises(TemplateError, match="does not appear"):
        JinjaTemplate("nothing").render(HI, continue_final_message=True)


@pytest.mark.parametrize("key", ["reasoning_content", "thinking"])
def test_reasoning_is_available_under_both_keys(key: str) -> None:
    template = JinjaTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")

    assert template.render([{"role": "assistant", "content": "", key: "hm"}]) == "hmhm"
