"""The engine `llama_cpp_python`: requests, token text, and functions of the C API."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.bindings_request import (
    CompletionRequest,
    Detokenizer,
    InvalidRequest,
    parse_request,
)
from bot.backends.llama_cpp.sampling import BINDINGS_PARAMETERS


def read(**given: object) -> CompletionRequest:
    return parse_request(json.dumps({"prompt": [1, 2, 3], **given}).encode())


def test_sampling_defaults_equal_those_of_llama_cpp() -> None:
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


END = 256  # tokens are bytes here, but for this one


def detokenizer(*stop: str) -> Detokenizer:
    return Detokenizer(lambda token: bytes([token]), end_ids={END}, stop=stop)


def detokenize(detokenizer: Detokenizer, tokens: list[int]) -> str:
    text = ""
    for token in tokens:
        text += detokenizer.add_token(token)
        if detokenizer.has_ended:
            return text
    return text + detokenizer.flush()


@given(st.text())
def test_text_round_trips_through_tokens(text: str) -> None:
    assert detokenize(detokenizer(), [*text.encode(), END]) == text


def test_character_of_several_tokens_is_returned_with_the_last_token() -> None:
    emoji = detokenizer()

    assert [emoji.add_token(token) for token in "🎭".encode()] == ["", "", "", "🎭"]


@pytest.mark.parametrize(
    ("stop", "tokens", "text", "has_ended"),
    [
        ((), [*"a🎭".encode()][:3], "a\ufffd", False),  # a character is incomplete
        ((), [*b"yes", END, *b"no"], "yes", True),
        (("\nAnn:",), [*b"yes\nAnn: no"], "yes", True),
        (("\nAnn:",), [*b"yes\nAn", END], "yes\nAn", True),
    ],
)
def test_end_token_or_stop_string_ends_the_text(
    stop: tuple[str, ...], tokens: list[int], text: str, has_ended: bool
) -> None:
    bytewise = detokenizer(*stop)

    assert (detokenize(bytewise, tokens), bytewise.has_ended) == (text, has_ended)
