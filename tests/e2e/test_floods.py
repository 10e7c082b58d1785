"""Test that notices are rare and delay no answer when a thousand people write to one group."""

import re
from itertools import pairwise

import pytest

from tests.support.chats import TelegramChat
from tests.support.features import ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import preset_json
from tests.support.transcripts import ANSWER_END
from tests.waiting import wait_until

_PEOPLE = 1000
# Not the notice of the rate limit, which has its own interval of ten minutes.
_NOTICE = re.compile(r"⏳ (I am busy|\d+ more message)")
_SECONDS_BETWEEN_NOTICES = 60

pytestmark = [
    *ON_THE_WIRES,
    pytest.mark.runs_with(  # with the default limits
        preset_json("tester", system="You are a tester."),
        TROUPE_LIMITS__ANSWERS_PER_PERSON="",
        TROUPE_LIMITS__ANSWERS_PER_CHANNEL="",
        TROUPE_LIMITS__WAITING_IN_CONVERSATION="",
    ),
]


@pytest.mark.soak
@at("telegram_group")
async def test_flood_in_a_group_gets_one_notice_a_minute_without_delaying_answers(
    where: TelegramChat, model: Model
) -> None:
    model.answers_all = True
    wire = where.platforms.telegram
    with model.held():
        async with model.reaching_half():
            where.ask()
        for person in range(_PEOPLE):
            wire.say(5000 + person, f"{where.mention}please T{person:04x}:1", chat=where.chat)
        where.say(f"/help@{wire.me['username']}")  # is answered behind all of them
        await wait_until(lambda: not wire.updates)
    await where.wait_until(lambda: "/preset" in "".join(where.texts()[-1:]), 240)

    notices = [one["t"] for one in where.sends() if _NOTICE.match(str(one["params"]["text"]))]
    assert notices
    for earlier, later in pairwise(notices):
        assert later - earlier > _SECONDS_BETWEEN_NOTICES - 1
    shown = where.texts()
    for before, text in zip(["", *shown], shown, strict=False):
        if _NOTICE.match(text):
            assert ANSWER_END.search(before), f"no answer in front of a notice: {shown}"
