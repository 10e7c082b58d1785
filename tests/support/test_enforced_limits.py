"""Test that the loopback platforms refuse calls beyond the limits."""

from dataclasses import dataclass, field

import pytest

from tests.support.enforced_limits import LimitEnforcer, discord_scopes, telegram_scopes


@dataclass
class Caller:
    seconds: float = 0.0
    enforcer: LimitEnforcer = field(init=False)

    def __post_init__(self) -> None:
        self.enforcer = LimitEnforcer(lambda: self.seconds)

    def post(self, channel: int, at: float) -> bool:
        self.seconds = at
        scopes = discord_scopes("POST", f"/channels/{channel}/messages")
        return self.enforcer.judge(scopes) is None

    def send(self, chat: int, at: float) -> bool:
        self.seconds = at
        return self.enforcer.judge(telegram_scopes(str(chat))) is None


@pytest.fixture
def caller() -> Caller:
    return Caller()


def test_channel_accepts_five_messages_per_window(caller: Caller) -> None:
    assert [caller.post(1, at) for at in (0, 1, 2, 3, 4, 4.9, 5)] == [True] * 5 + [False, True]
    assert caller.post(2, 5)


def test_bot_may_send_fifty_requests_a_second(caller: Caller) -> None:
    assert [caller.post(number, 0.5) for number in range(51)] == [True] * 50 + [False]
    [refusal] = caller.enforcer.self_inflicted()
    assert (refusal.scope, refusal.until) == ("discord-bot", 1.5)


def test_group_accepts_twenty_messages_and_edits_a_minute(caller: Caller) -> None:
    assert [caller.send(-1, at * 2.9) for at in range(21)] == [True] * 20 + [False]
    assert caller.send(-1, 60)


def test_private_chat_accepts_a_burst_of_ten_and_then_one_a_second(caller: Caller) -> None:
    assert [caller.send(1, 0) for _ in range(11)] == [True] * 10 + [False]
    assert [caller.send(1, at) for at in (1, 1.5, 2)] == [True, False, True]


def test_calls_within_retry_after_are_recorded_unless_already_in_flight(caller: Caller) -> None:
    caller.enforcer.refuse_next("telegram-chat", 10)
    assert [caller.send(1, at) for at in (0, 0.4, 9, 10)] == [False, False, False, True]
    assert caller.enforcer.early == ["telegram-chat 1: 9.00 s after a refusal for 10.00 s"]
    assert caller.enforcer.in_flight == 1
    assert caller.enforcer.self_inflicted() == []
