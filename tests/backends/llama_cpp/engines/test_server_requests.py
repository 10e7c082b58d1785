"""What a local engine is asked: token ids, with every parameter in its own words."""

import json

import pytest
from inline_snapshot import snapshot

from bot.backends.llama_cpp.engines.engine import Question
from bot.backends.llama_cpp.engines.server_requests import to_wire
from bot.backends.llama_cpp.sampling import output_limit, to_sampling
from bot.errors import BackendUnavailable
from tests.backends.asking import prompt


def body(stop: tuple[str, ...] = (), **given: object) -> dict[str, object]:
    asked = prompt("hello", **given)
    question = Question([1, 2, 3], stop, to_sampling(asked), output_limit(asked))
    decoded: dict[str, object] = json.loads(to_wire(question, "smol"))
    return decoded


def test_a_request_holds_the_ids_the_parameters_and_every_stop() -> None:
    stops = ("a", "b", "c", "d", "<|im_end|>")

    assert body(stops, parameters={"temperature": 0.5, "seed": None}) == snapshot(
        {
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "stop": ["a", "b", "c", "d", "<|im_end|>"],
            "preserved_tokens": ["a", "b", "c", "d", "<|im_end|>"],
            "model": "smol",
            "prompt": [1, 2, 3],
            "cache_prompt": True,
            "stream": True,
        }
    )


@pytest.mark.parametrize(
    ("limit", "parameters", "expected"),
    [
        (None, {}, None),
        (50, {}, 50),
        (50, {"max_tokens": 20}, 20),
        (50, {"max_completion_tokens": 80}, 50),
        (None, {"max_tokens": 0}, None),
        (None, {"n_predict": 7, "max_tokens": None}, 7),
    ],
)
def test_the_lowest_limit_counts(
    limit: int | None, parameters: dict[str, object], expected: int | None
) -> None:
    made = body(max_output_tokens=limit, parameters=parameters)

    assert made.get("max_tokens") == expected
    assert not made.keys() & {"max_completion_tokens", "n_predict"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_the_form_of_an_answer_is_a_schema_there(asked: object, expected: object) -> None:
    made = body(parameters={"response_format": asked})

    assert made.get("json_schema") == expected
    assert "response_format" not in made


def test_several_answers_at_once_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="a chat gets one answer"):
        body(parameters={"n": 2})
