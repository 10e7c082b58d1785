"""Each shipped family template renders the same prompt as its models' own template."""

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate, get, names
from bot.templates.registry import FAMILY_NAMES
from tests.shared_data import golden
from tests.templates.published_templates import published_templates

COUNTERPARTS = tomllib.loads(Path(__file__).with_name("counterparts.toml").read_text("utf-8"))
every_family = pytest.mark.parametrize("family", FAMILY_NAMES)


@every_family
def test_family_renders_the_same_as_its_models_own_template(family: str) -> None:
    theirs = published_templates()[COUNTERPARTS.get(family, family)]
    ours = get(family)(bos_token=theirs.bos_token, eos_token=theirs.eos_token)
    conversations = [case["input"] for case in golden("chat_templates")[::7]]

    assert [one for one in conversations if outcome(ours, one) != outcome(theirs, one)] == []


def outcome(template: JinjaTemplate, given: dict[str, Any]) -> str | type[TemplateError]:
    try:
        return template.render(
            given["messages"],
            tools=given["tools"],
            add_generation_prompt=given["add_generation_prompt"],
            now=datetime.fromisoformat(given["now"]),
        )
    except TemplateError as error:
        refused = type(error.__cause__).__name__ == "TemplateError"
        return str(error) if refused else TemplateError


def test_families_are_registered_with_tokens_and_stop_words() -> None:
    template = get("llama-3")()

    assert template.bos_token == "<|begin_of_text|>"
    assert template.stop_words == ("<|eot_id|>",)
    assert get("llama-3")(bos_token="").render([{"role": "user", "content": "x"}]).startswith("<|s")
    assert set(FAMILY_NAMES) <= set(names())
    assert len(FAMILY_NAMES) >= 30


def test_families_pass_template_variables_to_the_template() -> None:
    messages = [{"role": "user", "content": "?"}]
    prompt = get("qwen3")().render(messages, add_generation_prompt=True, enable_thinking=False)

    assert prompt.endswith("<think>\n\n</think>\n\n")
