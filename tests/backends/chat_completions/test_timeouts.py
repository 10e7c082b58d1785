"""The time limits of a request, on a clock that the test advances."""

import pytest

from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.chat_completions.request_runner import REASONING_TIMEOUT_SECONDS, AnswerTimer
from bot.backends.openai_compatible.settings import OpenAISettings


def test_endless_reasoning_ends_before_the_total_timeout() -> None:
    now = 0.0
    settings = OpenAISettings(base_url="http://model/v1", model="m", total_seconds=600)
    timer = AnswerTimer(settings, Endpoint("p", "http://model/v1"), 600.0, lambda: now)

    def think() -> None:
        nonlocal now
        while now < 600:
            with timer.begin_wait() as until:
                if now + 1 > until:
                    raise TimeoutError
                now += 1
            timer.record_progress(has_text=False)

    with pytest.raises(RequestFailed, match="no answer after its reasoning"):
        think()
    assert now == 1 + REASONING_TIMEOUT_SECONDS  # counted from the first thought
