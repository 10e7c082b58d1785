"""No log line of a run holds what people wrote, what was answered, or what people are called.

Messages, commands, edits, a description, names, failing models and refused messages: each word is
marked, and searched in everything that the service has printed.
"""

import json

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]
MARK = "canaryword"
PERSONA = "The persona knows canarypersona."


async def test_no_log_line_holds_the_words_of_people(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    service.settings["TROUPE_LOG_FORMAT"] = "json"
    preset = service.presets / "tester.json"
    preset.write_text(json.dumps({**json.loads(preset.read_text()), "system": PERSONA}))
    wire = platforms.discord
    named = wire.member(platforms.guild, f"{MARK}-name")
    await service.start_and_wait()
    private, group, channel = (
        platforms.telegram_dm(),
        platforms.telegram_group(),
        platforms.channel(),
    )
    chats = (private, group, channel)
    for number, chat in enumerate(chats):
        chat.say(f"{chat.mention}{MARK}{number} please T9{number}0:12", 0)
        chat.say(f"{MARK} overheard", 1)
        await wait_until(
            lambda where=chat, at=number: (  # type: ignore[misc]
                expected_answer(f"T9{at}0:12") in platforms.bot_texts(where)
            )
        )
    where = int(channel.name.removeprefix("discord:"))
    wire.say(named, where, f"{channel.mention}{MARK} from somebody with a name please T980:12")
    await wait_until(lambda: expected_answer("T980:12") in platforms.bot_texts(channel))
    for text in (f"/me I am {MARK}", f"/preset use {MARK}", f"/{MARK} {MARK}", "/forget last"):
        count = len(platforms.bot_texts(private))
        private.say(text, 0)
        await wait_until(lambda before=count: len(platforms.bot_texts(private)) > before)  # type: ignore[misc]

    # What fails on the way: a send that is refused, one whose response is lost, a dead model.
    platforms.telegram.fault("sendMessage", error_code=400, description="Bad Request: no rights")
    private.say(f"{MARK} please T981:12", 0)
    await wait_until(lambda: "refused" in service.output())
    platforms.telegram.faults.clear()
    platforms.telegram.fault("sendMessage", drop=True, after=True)
    private.say(f"{MARK} please T982:12", 0)
    await wait_until(lambda: expected_answer("T982:12") in platforms.bot_texts(private))
    platforms.telegram.faults.clear()
    model.gate.clear()
    halfway = model.halfway
    private.say(f"{MARK} please T983:40", 0)
    await wait_until(lambda: model.halfway > halfway)
    await service.kill()
    model.gate.set()
    await service.start_and_wait()
    await wait_until(lambda: expected_answer("T983:40") in platforms.bot_texts(private))
    assert await service.stop() == 0

    printed = service.log.read_text()
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert {"refused", "reconciled"} <= {line["event"] for line in lines}
    assert len(lines) > 5
    words = (MARK, "canarypersona", "overheard", expected_answer("T980:12")[-20:])
    assert [(line, word) for line in printed.splitlines() for word in words if word in line] == []
