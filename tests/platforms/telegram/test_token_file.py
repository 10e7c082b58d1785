"""Test that a new token in the file is used without a restart and without missed messages."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs
from typing_extensions import override

from bot.errors import TokenRejected
from bot.platforms.telegram.settings import TelegramSettings
from tests.platforms.telegram.conftest import RecordingClock, Rig
from tests.waiting import wait_until

_NEW = "123456789:AAH-" + "y" * 31


class FastClock(RecordingClock):
    """A clock that runs a hundred times as fast."""

    @override
    def monotonic(self) -> float:
        return super().monotonic() * 100


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def file(rig: Rig, tmp_path: Path) -> Path:
    rig.clock = FastClock()
    file = tmp_path / "token"
    write(file, rig.telegram.token)
    return file


async def test_new_token_in_the_file_replaces_a_revoked_token(rig: Rig, file: Path) -> None:
    async with rig.running(token=None, token_file=file) as bot:
        rig.telegram.say(1, "before")
        await rig.wait_for_texts("before")
        rig.telegram.token = _NEW  # @BotFather has revoked the other one
        await rig.telegram.wait(lambda: "token" in (bot.connection_error or ""))
        rig.telegram.say(1, "meanwhile")
        with pytest.raises(TokenRejected):
            await bot.check()
        write(file, _NEW)
        await rig.wait_for_texts("before", "meanwhile")
        assert bot.connection_error is None
        assert await bot.check()


_SECRET, _NEW_SECRET = "a-secret-of-telegram_1", "a-secret-of-telegram_2"
_HEADER = "X-Telegram-Bot-Api-Secret-Token"


def webhook(**more: Any) -> dict[str, Any]:
    return {"mode": "webhook", "webhook_url": "http://127.0.0.1:1/telegram", **more}


async def test_replaced_webhook_secret_is_required(rig: Rig, file: Path) -> None:
    write(file, _SECRET)
    async with rig.running(**webhook(webhook_secret_file=file)) as bot:
        await rig.telegram.wait(lambda: rig.telegram.wh)
        assert bot.is_authentic_call({_HEADER: _SECRET})
        write(file, f"{_NEW_SECRET}\n")
        await rig.telegram.wait(lambda: len(rig.calls("setWebhook")) > 1)
        assert bot.is_authentic_call({_HEADER: _NEW_SECRET})
        assert not bot.is_authentic_call({_HEADER: _SECRET})
    told = [one["secret_token"] for one in rig.calls("setWebhook")]
    assert (told[0], told[-1]) == (_SECRET, _NEW_SECRET)


@pytest.mark.parametrize("text", ["short", f"{_NEW_SECRET}\n{_NEW_SECRET}3", "Ä" * 20])
async def test_webhook_secret_file_without_exactly_one_valid_secret_changes_nothing(
    rig: Rig, file: Path, text: str
) -> None:
    write(file, _SECRET)
    bot = rig.bot(**webhook(webhook_secret_file=file))
    with capture_logs() as logs:
        write(file, text)
        await wait_until(lambda: bot.is_authentic_call({_HEADER: _SECRET}) and bool(logs))
    assert logs[0]["event"] == "webhook_secret_invalid"
    assert bot.is_authentic_call({_HEADER: _SECRET})
    assert not any(bot.is_authentic_call({_HEADER: one}) for one in text.split())
    await bot.close()
    with pytest.raises(ValidationError, match="webhook secret"):
        rig.bot(**webhook(webhook_secret_file=file))


async def test_standby_process_accepts_calls_with_the_new_secret(rig: Rig, file: Path) -> None:
    """A standby process makes no calls, so it must read the file when a call arrives."""
    bot = rig.bot(**webhook(token=None, token_file=file))
    before, after = (
        TelegramSettings(token=SecretStr(one)).webhook_token for one in (rig.telegram.token, _NEW)
    )
    assert bot.is_authentic_call({_HEADER: before})
    write(file, _NEW)
    await wait_until(lambda: bot.is_authentic_call({_HEADER: after}))
    assert not bot.is_authentic_call({_HEADER: before})
    await bot.close()


@pytest.mark.parametrize("is_refused_at_start", [True, False])
async def test_rejected_token_is_tried_again(rig: Rig, *, is_refused_at_start: bool) -> None:
    rig.clock, token = FastClock(), rig.telegram.token
    if is_refused_at_start:
        rig.telegram.token = _NEW
    async with rig.running(token=token) as bot:
        if not is_refused_at_start:
            await rig.wait_for_poll()
            rig.telegram.token = _NEW
            rig.telegram.say(1, "ends the poll")
        await wait_until(lambda: "token" in (bot.connection_error or ""))
        rig.telegram.say(1, "meanwhile")
        rig.telegram.token = token
        await rig.wait_for_texts("meanwhile")
        await wait_until(lambda: bot.connection_error is None)
