"""The echo backend repeats its prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.echo import EchoBackend
from tests.backends.asking import ask, prompt
from tests.backends.conftest import FakeClock


@given(st.text())
async def test_echo_repeats_the_newest_message(text: str) -> None:
    assert (await ask(EchoBackend(), prompt(text))).text == text


async def test_echo_streams_word_by_word() -> None:
    assert (await ask(EchoBackend(), prompt("a  b\nc "))).deltas == ["a", "  b", "\nc "]


async def test_parameters_control_the_echo(clock: FakeClock) -> None:
    script = {"echo_answer": "abcdefgh", "echo_chunks": 3, "echo_delay_seconds": 0.5}

    answer = await ask(EchoBackend(clock), prompt(parameters=script))

    assert answer.deltas == ["abc", "def", "gh"]
    assert clock.slept == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", ["echo_chunks", "echo_delay_seconds"])
async def test_invalid_echo_parameter_is_reported(name: str) -> None:
    answer = await ask(EchoBackend(), prompt(parameters={name: "many"}))

    assert "'many'" in str(answer.error)
