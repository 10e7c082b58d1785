"""The backend without a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.echo import Echo
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Impatient


@given(st.text())
async def test_it_repeats_the_newest_message(text: str) -> None:
    assert (await ask(Echo(), prompt(text))).text == text


async def test_it_speaks_word_by_word() -> None:
    assert (await ask(Echo(), prompt("a  b\nc "))).deltas == ["a", "  b", "\nc "]


async def test_preset_may_script_it(clock: Impatient) -> None:
    script = {"echo_answer": "abcdefgh", "echo_chunks": 3, "echo_delay_seconds": 0.5}

    answer = await ask(Echo(clock), prompt(parameters=script))

    assert answer.deltas == ["abc", "def", "gh"]
    assert clock.slept == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", ["echo_chunks", "echo_delay_seconds"])
async def test_script_that_makes_no_sense_is_said(name: str) -> None:
    answer = await ask(Echo(), prompt(parameters={name: "many"}))

    assert "'many'" in str(answer.error)
