"""LMDeploy's templates in cases that the golden vectors do not cover."""

import pytest

from bot.errors import TemplateError
from bot.templates import RoleTemplate, get


def test_from_json_with_a_registered_name_overrides_its_values() -> None:
    template = RoleTemplate.from_json({"model_name": "qwen", "meta_instruction": "Be brief."})

    assert template.get_prompt("Hi") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_keys_of_newer_lmdeploy_versions_are_accepted() -> None:
    template = RoleTemplate.from_json({"user": "U:", "tool": "T:", "eotool": "\n"})
    assert template.messages2prompt("hi") == "U:hi"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [("user", 5, "'user' .* must be a string"), ("stop_words", "x", "must be a list of strings")],
)
def test_from_json_reports_a_value_of_the_wrong_type(key: str, value: object, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        RoleTemplate.from_json({key: value})


def test_from_json_rejects_an_unknown_key() -> None:
    with pytest.raises(TemplateError, match="unknown key 'sytem'"):
        RoleTemplate.from_json({"model_name": "x", "sytem": "typo"})


def test_completion_capability_leaves_the_prompt_unchanged() -> None:
    assert get("qwen")(capability="completion").get_prompt("Once upon") == "Once upon"


def test_role_name_is_never_evaluated_as_code() -> None:
    messages = [{"role": "user.__class__", "content": "x"}]

    with pytest.raises(ValueError, match=r"no role 'user\.__class__'"):
        get("internlm-chat-7b")().messages2prompt(messages)


def test_unsupported_capability_raises_an_assertion_error() -> None:
    template = get("internlm-chat-7b")(capability="voice")

    with pytest.raises(
        AssertionError, match="InternLMChat7B does not support the capability 'voice'"
    ):
        template.get_prompt("Hi")


def test_qwen25_groups_tool_results_in_one_turn() -> None:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "Let me see."},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]

    prompt = get("qwen2d5")().messages2prompt(messages, sequence_start=False)

    assert prompt == (
        "<|im_start|>user\n?<|im_end|>\n"
        "<|im_start|>assistant\nLet me see.<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>"
        "\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
