"""Shipped families: the prompt of each, equal to the one of its models' own template."""

from datetime import datetime
from typing import Any

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate, get, names
from bot.templates.family_templates import FAMILIES
from tests.shared_data import golden
from tests.templates.published_templates import published_templates

# Names of the models' own templates among the golden vectors, where they differ.
COUNTERPARTS = {
    "alpaca": "cz-compact/alpaca",
    "chatglm3-6b": "chatglm3",
    "falcon-instruct": "cz-compact/falcon-instruct",
    "gemma-1.1": "orig/gemma-1.1",
    "glm-4": "chatglm4",
    "internlm2.5": "internlm3",
    "llama-2": "orig/llama2",
    "llama-3": "orig/llama3",
    "llama-3.1": "llama3.1",
    "mistral-large": "mistral-v7",
    "mistral-v0.1": "orig/mistral-v0.1",
    "mistral-v0.2": "orig/mistral-v0.2",
    "openchat-3.5": "openchat",
    "qwen1.5": "orig/qwen1.5",
    "solar-instruct": "solar",
    "vicuna-v1.1": "vicuna",
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_family_renders_as_its_models_own_template(family: str) -> None:
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
    assert set(FAMILIES) <= set(names())
    assert len(FAMILIES) >= 30


def test_families_pass_on_template_variables() -> None:
    messages = [{"role": "user", "content": "?"}]
    prompt = get("qwen3")().render(messages, add_generation_prompt=True, enable_thinking=False)

    assert prompt.endswith("<think>\n\n</think>\n\n")
