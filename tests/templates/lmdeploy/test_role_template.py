"""LMDeploy's templates, beyond what the golden vectors show."""

import pytest

from bot.errors import TemplateError
from bot.templates import BaseTemplate, RoleTemplate, get

FORM = {
    "model_name": "my-model",
    "system": "<|im_start|>system\n",
    "meta_instruction": "You are a robot.",
    "eosys": "<|im_end|>\n",
    "user": "<|im_start|>user\n",
    "eoh": "<|im_end|>\n",
    "assistant": "<|im_start|>assistant\n",
    "eoa": "<|im_end|>",
    "separator": "\n",
    "capability": "chat",
    "stop_words": ["<|im_end|>"],
}
ROUNDS = [
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "U2"},
]


def test_the_json_form_makes_a_template() -> None:
    template = RoleTemplate.from_json(FORM)

    assert template.stop_words == ["<|im_end|>"]
    assert template.messages2prompt(ROUNDS) == (
        "<|im_start|>system\nYou are a robot.<|im_end|>\n"
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_json_form_of_a_known_name_changes_that_template() -> None:
    template = RoleTemplate.from_json({"model_name": "qwen", "meta_instruction": "Be brief."})

    assert template.get_prompt("Hi") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_unknown_key_of_the_json_form_is_refused() -> None:
    with pytest.raises(TemplateError, match="unknown key 'sytem'"):
        RoleTemplate.from_json({"model_name": "x", "sytem": "typo"})


def test_a_completion_model_is_given_the_prompt_unchanged() -> None:
    assert get("qwen")(capability="completion").get_prompt("Once upon") == "Once upon"


def test_a_role_that_is_code_is_an_unknown_role() -> None:
    messages = [{"role": "user.__class__", "content": "x"}]

    with pytest.raises(ValueError, match=r"no role 'user\.__class__'"):
        get("internlm-chat-7b")().messages2prompt(messages)


def test_the_document_s_internlm_refuses_what_it_cannot_do() -> None:
    template = get("internlm-chat-7b")(capability="voice")

    with pytest.raises(AssertionError, match="InternLMChat7B has no capability of voice"):
        template.get_prompt("Hi")


def test_sampling_values_are_part_of_a_template() -> None:
    base = BaseTemplate()

    assert (base.session_len, base.top_p, base.top_k) == (2048, 0.8, None)
    assert (base.temperature, base.repetition_penalty) == (0.8, 1.0)
    assert get("internlm-chat-20b")().session_len == 8192
    assert get("internlm-20b")().session_len == 4096
    assert get("internlm-20b")().capability == "completion"
    assert get("baichuan2-7b")().top_k == 5


def test_code_llama_fills_the_marked_place() -> None:
    template = get("codellama")(capability="infilling")

    assert template.get_prompt("def f():<FILL>\n") == "<PRE> def f(): <SUF>\n <MID>"
    assert template.stop_words == ["<EOT>"]


def test_chatglm_counts_the_rounds_of_its_sequence() -> None:
    template = get("chatglm")()

    template.get_prompt("one")

    assert template.get_prompt("two", False) == "[Round 2]\n\n问：two\n\n答："


def test_internlm2_writes_tools_and_calls_without_changing_the_messages() -> None:
    call = {"function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "system", "content": "Sys"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00"},
    ]

    prompt = get("internlm2")().messages2prompt(messages, tools=[{"name": "now"}])

    assert prompt == (
        "<|im_start|>system\nSys<|im_end|>\n"
        '<|im_start|>system name=<|plugin|>\n[{"name": "now"}]<|im_end|>\n'
        "<|im_start|>assistant\n<|action_start|><|plugin|>\n"
        '{"name": "now", "parameters": {"zone": "UTC"}}<|action_end|><|im_end|>\n'
        "<|im_start|>environment\n12:00<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(messages) == 3
    assert call == {"function": {"name": "now", "arguments": '{"zone": "UTC"}'}}


def test_qwen25_gathers_the_answers_of_tools_in_one_turn() -> None:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]

    prompt = get("qwen2d5")().messages2prompt(messages, sequence_start=False)

    assert prompt == (
        "<|im_start|>user\n?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>"
        "\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
