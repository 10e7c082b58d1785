"""Sampling parameters of presets are validated and translated for local engines."""

import json
from pathlib import Path

import pytest

from bot.backends.llama_cpp.sampling import find_parameter_problems, to_sampling_parameters
from bot.errors import BackendUnavailable
from tests.backends.asking import prompt

CASES = json.loads(Path(__file__).with_name("parameters.json").read_text("utf-8"))


def convert_sampling(**parameters: object) -> dict[str, object]:
    return to_sampling_parameters(prompt(parameters=parameters))


def test_aliases_are_translated_to_the_engines_names() -> None:
    given = {"temperature": 0.5, "repetition_penalty": 1.1, "random_seed": 7, "min_p": None}

    assert convert_sampling(**given) == {"temperature": 0.5, "repeat_penalty": 1.1, "seed": 7}


@pytest.mark.parametrize(("name", "hint"), CASES["unknown"])
def test_unknown_parameter_error_suggests_the_nearest_name(name: str, hint: str) -> None:
    (problem,) = find_parameter_problems({name: 1})

    assert problem.startswith(f"unknown parameter {name!r}; {hint}")
    with pytest.raises(BackendUnavailable, match=f"unknown parameter {name!r}") as refused:
        convert_sampling(**{name: 1})
    assert "the bot's operator has to fix it" in refused.value.notice


@pytest.mark.parametrize(("name", "value"), CASES["invalid"])
def test_invalid_value_is_reported(name: str, value: object) -> None:
    (problem,) = find_parameter_problems({name: value})

    assert problem.startswith(f"the parameter {name!r} must be ")


def test_parameter_unsupported_by_the_bindings_is_rejected() -> None:
    assert find_parameter_problems({"adaptive_decay": 0.5}) == []
    assert find_parameter_problems({"adaptive_decay": 0.5}, "llama_cpp_python") == [
        "the engine llama_cpp_python has no parameter 'adaptive_decay'; remove it"
    ]


def test_64_bit_seed_is_always_reduced_to_the_same_32_bit_seed() -> None:
    assert convert_sampling(seed=2**63) == {"seed": 2**63 % (2**32 - 1)}
    assert convert_sampling(seed=2**32 - 1) == {"seed": 0}
    assert convert_sampling(seed=-1) == {"seed": -1}


def test_output_limit_is_the_lowest_of_limit_and_parameters() -> None:
    asked = prompt(
        stop=("a",), parameters={"stop": ["b"], "max_new_tokens": 9}, max_output_tokens=20
    )

    assert asked.output_limit == 9
    assert to_sampling_parameters(asked) == {}


def test_string_templates_are_not_sent_to_the_engine() -> None:
    assert find_parameter_problems({"user_template": "{{user}}", "end_template": None}) == []
