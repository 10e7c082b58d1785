"""JinjaTemplate: errors, variables, continued messages, and fast look-ups."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bot.errors import TemplateError
from bot.templates import JinjaTemplate
from bot.templates.jinja.jinja_template import Message

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


VALUES = st.sampled_from(["", "text", " padded ", 0, None, [], [1], {"role": "inner"}])
KEYS = st.sampled_from(["role", "content", "items", "get", "pop", "__class__", "x"])
LOOK_UPS = [
    ("{% for m in messages %}{{ m@ is defined }}{{ loop.first }}" + use + "{% endfor %}").replace(
        "@", access
    )
    for access in (".role", "['role']", ".items", "['items']", ".pop", ".__class__", ".missing")
    for use in ("", "{{ m@ }}", "{{ m@.strip() }}", "{{ m@ + 'x' }}")
]


@given(st.dictionaries(KEYS, VALUES))
def test_fast_look_ups_equal_those_of_the_stock_sandbox(message: dict[str, object]) -> None:
    for source in LOOK_UPS:
        assert outcome(JinjaTemplate(source).render, [message]) == outcome(stock(source), [message])


@cache
def stock(source: str) -> Callable[[list[Message]], str]:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(source)
    return lambda messages: template.render(messages=messages)


def outcome(render: Callable[[list[Message]], str], messages: list[Message]) -> str:
    """Return the prompt or the error text, without the addresses of bound methods."""
    try:
        return re.sub(r"at 0x\w+", "", render(messages))
    except TemplateError as error:
        return str(error)
    except (jinja2.TemplateError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
