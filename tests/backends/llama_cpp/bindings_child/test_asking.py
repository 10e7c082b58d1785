"""What may be asked of the engine, and what is refused by name."""

import json

import pytest

from bot.backends.llama_cpp.bindings_child.asking import Question, Refused, TooLong, read_question


def read(**given: object) -> Question:
    body = json.dumps({"prompt": [1, 2, 3], **given}).encode()
    return read_question(body, vocabulary_size=10, sequence_tokens=8, slots=2)


def test_what_is_not_said_is_as_llama_cpp_has_it() -> None:
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
def test_what_would_be_ignored_or_do_harm_is_refused_by_name(
    given: dict[str, object], parameter: str
) -> None:
    with pytest.raises(Refused) as refused:
        read(**given)

    assert refused.value.parameter == parameter


def test_a_prompt_that_leaves_no_room_is_too_long() -> None:
    with pytest.raises(TooLong):
        read(prompt=[1] * 8)


def test_a_whole_number_may_be_written_as_any_number() -> None:
    assert read(top_k=40.0).top_k == 40
