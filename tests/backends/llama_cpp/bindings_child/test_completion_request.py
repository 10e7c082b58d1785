"""Completion requests are parsed with llama.cpp's defaults, or rejected."""

import json

import msgspec
import pytest

from bot.backends.llama_cpp.bindings_request import (
    CompletionRequest,
    InvalidRequest,
    parse_request,
)
from bot.backends.llama_cpp.sampling import BINDINGS_PARAMETERS


def read(**given: object) -> CompletionRequest:
    return parse_request(json.dumps({"prompt": [1, 2, 3], **given}).encode())


def test_defaults_are_those_of_llama_cpp() -> None:
    asked = read()

    assert (asked.temp, asked.top_k, asked.top_p, asked.min_p) == (0.8, 40, 0.95, 0.05)
    assert (asked.repeat_penalty, asked.repeat_last_n, asked.seed) == (1.0, 64, None)


def test_every_parameter_of_a_preset_for_the_bindings_is_known() -> None:
    translated = {"response_format", "n"}
    known = {field.encode_name for field in msgspec.structs.fields(CompletionRequest)}

    assert known >= BINDINGS_PARAMETERS - translated


@pytest.mark.parametrize("given", [{"temperature": "hot"}, {"logit_bias": {"4": "much"}}])
def test_invalid_parameter_is_rejected(given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(given))):
        read(**given)


def test_integral_float_counts_as_an_integer() -> None:
    assert read(top_k=40.0).top_k == 40
