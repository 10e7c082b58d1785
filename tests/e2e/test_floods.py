"""A thousand people who write to one group at once: notices are rare and delay no answer."""

import itertools
import json
import re

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import ANSWER_END
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_PEOPLE = 1000
# Not the notice of the rate limit, which has its own interval of ten minutes.
_NOTICE = re.compile(r"⏳ (I am busy|\d+ more message)")
_SECONDS_BETWEEN_NOTICES = 60


async def test_flood_in_a_group_gets_one_notice_a_minute_and_none_in_front_of_an_answer(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    for name in [one for one in service.settings if one.startswith("TROUPE_LIMITS__")]:
        del service.settings[name]
    preset = {"name": "tester", "provider": "test", "model": "m", "system": "You are a tester."}
    (service.presets / "tester.json").write_text(json.dumps(preset))
    model.answers_all = True
    model.gate.clear()
    await service.start_and_wait()
    wire, group = platforms.telegram, platforms.telegram_group()
    chat = int(group.name.removeprefix("telegram:"))
    group.ask("f000")
    await wait_until(lambda: model.halfway == 1)
    for person in range(_PEOPLE):
        wire.say(5000 + person, f"{group.mention}please T{person:04x}:1", chat=chat)
    wire.say(1, f"/help@{wire.me['username']}", chat=chat)  # is answered behind all of them
    await wait_until(lambda: not wire.updates)
    model.gate.set()
    await wait_until(lambda: "/preset" in "".join(platforms.bot_texts(group)[-1:]), seconds=240)

    sent = [
        (call["t"], str(call["params"]["text"]))
        for call in wire.log
        if call["method"].lower() == "sendmessage" and str(call["params"]["chat_id"]) == str(chat)
    ]
    notices = [moment for moment, text in sent if _NOTICE.match(text)]
    assert notices
    for earlier, later in itertools.pairwise(notices):
        assert later - earlier > _SECONDS_BETWEEN_NOTICES - 1
    shown = platforms.bot_texts(group)
    for before, text in zip(["", *shown], shown, strict=False):
        if _NOTICE.match(text):
            assert ANSWER_END.search(before), f"no answer in front of a notice: {shown}"
