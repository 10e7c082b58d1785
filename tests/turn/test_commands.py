"""Test commands in a conversation: what they say, and what they leave of the history."""

import asyncio
from dataclasses import replace

from bot.chat.incoming import WakeReason
from bot.chat.session import MessageNote
from bot.errors import Refused
from bot.runtime.tasks import cancel_and_wait
from bot.storage.database import Database
from tests.fakes import LIMITS
from tests.samples import BOB, make_incoming
from tests.turn.setup import Setup
from tests.waiting import advance_in_steps


async def test_context_names_the_file_to_admins_and_masks_secrets(database: Database) -> None:
    setup = Setup(database, ["Hi."], preset={"name": "nora sk-canary"})
    await setup.say("hello", "/context", make_incoming("/context", key="5:3", author=BOB))
    to_admin, to_bob = setup.texts[1:]
    assert to_admin == to_bob + "\n\n/context prompt sends the exact prompt as a file."
    assert to_bob.startswith("nora *** (version 3) on p/m, receipt 1: ")


async def test_native_response_is_urgent_where_it_counts_for_no_rate(database: Database) -> None:
    limits = replace(LIMITS, counts_responses=False)
    setup = Setup(database, limits=limits)
    native = make_incoming("/help", key="5:2", wake=WakeReason.COMMAND)
    await setup.say("/help", replace(native, message_id=None, interaction="1:token"))
    assert setup.urgent_deliveries == [False, True]


async def test_settings_why_names_the_reason_of_each_message(database: Database) -> None:
    setup = Setup(database, ["Hi."], preset={"role_name": "Nora", "context": "addressed"})
    await setup.say(
        make_incoming("good morning all", key="5:1", wake=None),
        make_incoming("hi Nora", key="5:2", wake=None),
        make_incoming("/settings why", key="5:3", wake=WakeReason.COMMAND),
    )
    assert setup.texts[-1].splitlines() == [
        "Scope: shared – everybody here shares one conversation",
        "Alice: “good morning all” – not answered: nora is the only character here, "
        "was not addressed",
        "Alice: “hi Nora” – answered: nora is the only character here, was called by name",
    ]


async def test_settings_why_tells_what_other_processes_decided(database: Database) -> None:
    setup = Setup(database, ["Hi."], ["Hello."])
    storing = asyncio.create_task(setup.decisions.run())
    await setup.say("hello")
    await advance_in_steps(setup.clock, 0.2)
    await setup.notes.add([MessageNote("why:telegram:5", "{}")])  # damaged
    await cancel_and_wait([storing])
    restarted = Setup(database, backend=setup.backend, surface=setup.surface)
    await restarted.say("good morning", "/settings why")
    reasons = "answered: nora is the only character here, was addressed: this is a private chat"
    assert setup.texts[-1].splitlines()[1:] == [
        f"Alice: “{text}” – {reasons}" for text in ("hello", "good morning")
    ]
    await restarted.say("/forget channel", "/settings why")
    assert "hello" not in setup.texts[-1]


async def test_settings_why_names_what_the_platform_refused(database: Database) -> None:
    setup = Setup(database, ["Hi."], ["Hm."], ["Ho."])
    no_right = Refused("Telegram refuses: Bad Request: not enough rights to send text messages")
    closed = Refused("Telegram refuses: Bad Request: TOPIC_CLOSED")
    setup.surface.fail_next("send", no_right, no_right, closed)
    for text in ("hello", "are you there?", "hello?"):
        await setup.say(text)
    await setup.say("/settings why")
    assert setup.texts[-1].splitlines()[-2:] == [
        f"⚠ Not delivered here: “{no_right}”",
        f"⚠ Not delivered here: “{closed}”",
    ]
