"""A token file that is replaced while the platform runs: no restart, and no message is missed."""

from pathlib import Path

import pytest
from typing_extensions import override

from bot.errors import TokenRejected
from tests.platforms.telegram.conftest import RecordingClock, Rig

_NEW = "123456789:AAH-" + "y" * 31


class FastClock(RecordingClock):
    """Its seconds are a hundredth of a second."""

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


async def test_revoked_token_stops_nothing_until_its_file_has_the_new_one(
    rig: Rig, file: Path
) -> None:
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


async def test_token_that_is_replaced_before_it_is_revoked_is_used_for_the_next_calls(
    rig: Rig, file: Path
) -> None:
    async with rig.running(token=None, token_file=file) as bot:
        rig.telegram.say(1, "before")
        await rig.wait_for_texts("before")
        write(file, _NEW)
        rig.telegram.token = _NEW
        assert await bot.check()
        rig.telegram.say(1, "after")
        await rig.wait_for_texts("before", "after")
        assert bot.connection_error is None


async def test_token_that_never_worked_ends_the_platform_at_the_start(rig: Rig, file: Path) -> None:
    write(file, _NEW)
    bot = rig.bot(token=None, token_file=file)
    with pytest.raises(TokenRejected):
        await bot.run(rig.intake)
    await bot.close()
