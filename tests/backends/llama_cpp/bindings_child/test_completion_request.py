"""Completion requests are parsed with llama.cpp's defaults, or rejected by parameter."""

import json

import pytest

from bot.backends.llama_cpp.bindings_child.completion_request import (
    CompletionRequest,
    InvalidRequest,
    PromptTooLong,
    parse_request,
)


def read(**given: object) -> CompletionRequest:
    body = json.dumps({"prompt": [1, 2, 3], **given}).encode()
    return parse_request(body, vocabulary_size=10, slot_tokens=8, slots=2)


def test_defaults_are_those_of_llama_cpp() -> None:
    asked = read()

    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p) == (0.8, 40, 0.95, 0.05)
    assert (asked.repeat_penalty, asked.repeat_last_n, asked.seed) == (1.0, 64, None)


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"min_pp": 0.1}, "min_pp"),
        ({"top_p": 2}, "top_p"),
        ({"temperature": "hot"}, "temperature"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"logit_bias": 1}, "logit_bias"),
        ({"logit_bias": {"4": "much"}}, "logit_bias"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"id_slot": 2}, "id_slot"),
    ],
)
def test_unknown_or_invalid_parameter_is_rejected_by_name(
    given: dict[str, object], parameter: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**given)

    assert refused.value.parameter == parameter


def test_prompt_that_fills_the_context_is_too_long() -> None:
    with pytest.raises(PromptTooLong):
        read(prompt=[1] * 8)


def test_integral_float_counts_as_an_integer() -> None:
    assert read(top_k=40.0).top_k == 40
