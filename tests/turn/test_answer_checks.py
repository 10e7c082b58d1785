"""Test that a refused answer is never shown, stored or repeated, however it was requested."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from bot.chat.command import ButtonAction
from bot.chat.incoming import ChatJoin
from bot.chat.prompt import FinishReason, ReasoningDelta
from bot.chat.receipt import Receipt
from bot.errors import BackendUnavailable
from bot.prompting.fit import tokens_by_section
from bot.runtime import plugins
from bot.runtime.plugins import Refusal
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend, ScriptStep
from tests.replying.test_answer_check import Moderator
from tests.samples import ALICE, make_incoming
from tests.turn.setup import CHAT, Setup, pass_time_until, pressed, working
from tests.waiting import PATIENCE_SECONDS

INSTEAD = "I'd rather not say that here. Let's talk about something else."
JOINED = ChatJoin(make_incoming().address, "join:5", None, make_incoming().at, (CHAT,))
CLEAN = "Long ago there was a sailor who knew many words. " * 2
LONG = " ".join(f"Chapter {number} tells of storm {number**3}." for number in range(90))
LISTED = "withheld: contains a word banned in this chat"
GROWING: list[ScriptStep] = [CLEAN, "He was called Scoun", "drel by", " all."]


async def listing(database: Database, *scripts: Sequence[ScriptStep], **given: Any) -> Setup:
    """Return a channel whose admins banned a word."""
    setup = Setup(database, *scripts, **given)
    await setup.say(make_incoming("/access words scoundrel here", key="5:99"))
    assert setup.texts == ["Answers with these words are not shown (here): scoundrel"]
    setup.surface.messages.clear()
    setup.surface.contents.clear()
    return setup


def ever_shown(setup: Setup) -> str:
    """Return all texts that were ever visible."""
    return "\n".join(f"{one.text}\n{one.thoughts}" for one in setup.surface.contents)


async def receipts(setup: Setup) -> list[Receipt]:
    return [one for _, one in await setup.container.receipts.find_for_last_message(CHAT)]


def count(outcome: str) -> float:
    return REGISTRY.get_sample_value("troupe_checked_total", {"outcome": outcome}) or 0.0


async def test_refused_answer_is_replaced_with_a_stock_sentence_while_streaming(
    database: Database,
) -> None:
    go_on, before = asyncio.Event(), count("words")
    setup = await listing(database, [CLEAN, go_on, *GROWING[1:]])
    async with working(setup, "Tell me") as worker:
        await pass_time_until(setup, lambda: setup.texts)
        assert CLEAN.startswith(setup.texts[0].rstrip("… "))
        go_on.set()
        await worker
    assert setup.texts == [INSTEAD]
    assert "scoun" not in ever_shown(setup).lower()
    assert await setup.history() == [("user", "Tell me"), ("assistant", INSTEAD)]
    [receipt] = await receipts(setup)
    assert (receipt.answer, receipt.check, receipt.is_withheld) == (INSTEAD, LISTED, True)
    assert receipt.reason is FinishReason.FILTERED
    assert receipt.usage.output_tokens == 0, "the model was stopped"
    assert setup.backend.closed_early == 1
    assert count("words") == before + 1
    await setup.say("/context")
    assert LISTED in setup.texts[-1]


@pytest.mark.parametrize(
    "preset",
    [
        {"stream": False},
        {"thoughts": "folded"},
        {"regex_scripts": [{"find": "/rogue/", "replace": "scoundrel"}]},
        {"long_answer": "file"},
    ],
    ids=["single", "thoughts", "scripts", "file"],
)
async def test_answer_that_is_not_streamed_is_checked(
    database: Database, preset: dict[str, object]
) -> None:
    scripts: dict[str, list[ScriptStep]] = {
        "thoughts": [ReasoningDelta("A scoundrel!"), "He was nice."],
        "regex_scripts": ["He was a rogue."],
    }
    script = scripts.get(next(iter(preset)), [LONG, "He was a scoundrel."])
    limits = replace(LIMITS, folds_thoughts=True)
    setup = await listing(database, script, preset=preset, limits=limits)
    await setup.say("Tell me")
    assert setup.texts == [INSTEAD]
    assert "scoundrel" not in ever_shown(setup)
    assert "scoundrel" not in repr(await receipts(setup))


async def test_buttons_never_show_or_continue_a_refused_answer(database: Database) -> None:
    setup = await listing(database, ["Fine."], ["You scoundrel!"], ["It goes on."])
    await setup.say(make_incoming("Tell me", key="5:1"))
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    assert setup.texts == [INSTEAD]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert setup.texts == ["Fine."]
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="3"))
    assert setup.texts == [INSTEAD]
    await setup.say(pressed(ButtonAction.CONTINUE, key="4"))
    assert setup.texts == [INSTEAD, "It goes on."]
    assert "scoundrel" not in ever_shown(setup)
    assert "scoundrel" not in repr(setup.backend.prompts)


GREETINGS = ["/preset use {name}", "/new", "hello", JOINED]


@pytest.mark.parametrize("said", GREETINGS, ids=["use", "new", "first answer", "joined"])
@pytest.mark.parametrize("greeter", ["mira", "nora"])
async def test_greeting_of_a_user_made_character_is_checked(
    database: Database, said: str | ChatJoin, greeter: str
) -> None:
    setup = Setup(database, ["Fine."], preset={"greeting": "Ho, scoundrel!"})
    asked, mira = make_incoming(), "/character add mira | She paints. | Ho, scoundrel!"
    await setup.say("/access words scoundrel here", mira)
    if greeter == "mira":
        found = await setup.resolver.find_named_preset(
            "mira", asked, await setup.resolver.resolve([CHAT])
        )
        await setup.resolver.set_active_presets(CHAT, [found], ALICE.id)
    setup.surface.messages.clear()
    setup.surface.contents.clear()
    await setup.say(said.format(name=greeter) if isinstance(said, str) else said)
    shown = INSTEAD if greeter == "mira" else "Ho, scoundrel!"
    assert any(shown in one for one in setup.texts)
    assert ("scoundrel" in ever_shown(setup)) is (greeter == "nora")
    assert ("assistant", shown) in await setup.history()


async def test_other_characters_answer_after_a_refused_answer(database: Database) -> None:
    nils: dict[str, object] = {"name": "nils", "provider": "p", "model": "m"}
    go_on = asyncio.Event()
    story: list[ScriptStep] = [LONG, go_on, "You scoundrel!"]
    setup = Setup(database, story, ["Well, well."], others=[nils])
    await setup.say("/preset add nils", "/access words scoundrel here")
    setup.surface.messages.clear()
    setup.surface.contents.clear()
    async with working(setup, "nora and nils, hi") as worker:
        await pass_time_until(setup, lambda: len(setup.texts) == 2)
        go_on.set()
        await worker
    assert setup.texts == [f"**nora**\n{INSTEAD}", "**nils**\nWell, well."]
    assert "scoundrel" not in ever_shown(setup)


@pytest.mark.parametrize("withholds", [False, True])
async def test_another_provider_can_moderate_answers(
    database: Database, *, withholds: bool
) -> None:
    moderator, answer = Moderator(), FakeBackend([CLEAN, "FORBIDDEN."], ["Fine."])
    settings = {"withhold_unchecked": withholds}
    setup = Setup(database, backend=answer, fallback=moderator, settings=settings)
    await setup.say("Tell me")
    assert setup.texts == [INSTEAD]
    [receipt] = await receipts(setup)
    assert receipt.check == "withheld by moderation (q): harassment"
    moderator.fail(BackendUnavailable("it is down"))
    outcome = "withheld_unchecked" if withholds else "unchecked"
    before = count(outcome)
    await setup.say("Again")
    assert setup.texts[1:] == [INSTEAD if withholds else "Fine."]
    assert "FORBIDDEN" not in ever_shown(setup)
    [receipt] = await receipts(setup)
    assert receipt.is_withheld is withholds
    assert "moderation failed" in receipt.check
    assert count(outcome) == before + 1


async def test_streamed_text_is_shown_only_after_moderation(
    database: Database,
) -> None:
    go_on, moderator = asyncio.Event(), Moderator()
    backend = FakeBackend([LONG, " But", go_on, " FORBIDDEN!"])
    setup = Setup(database, backend=backend, fallback=moderator)
    async with working(setup, "Tell me") as worker:
        await pass_time_until(setup, lambda: setup.texts)
        assert "".join(moderator.asked).startswith(setup.texts[0].rstrip("… "))
        go_on.set()
        await worker
    assert setup.texts == [INSTEAD]
    assert "FORBIDDEN" not in ever_shown(setup)


async def test_banned_words_are_inherited_unless_a_narrower_scope_has_its_own(
    database: Database,
) -> None:
    chosen = {"admins": frozenset({ALICE.id})}
    setup = Setup(database, ["A rogue."], settings=chosen)
    thread, server = f"{CHAT}:7", "discord:guild:1"

    async def order(line: str) -> str:
        said = replace(make_incoming(line, key=line), scopes=(thread, CHAT, server))
        await setup.say(said)
        return setup.texts[-1]

    assert await order("/access words") == "No words are banned from answers here."
    assert "everywhere): knave" in await order("/access words knave everywhere")
    shown = await order("/access words  scoundrel ,  two   words")
    assert shown.endswith("(in the server or group): scoundrel, two words")
    assert "(here): rogue*" in await order("/access words rogue* here")
    assert await order("Tell me") == INSTEAD
    assert await order("/access words none here") == "No words are banned from answers here."
    assert await order("Tell me again") == "A rogue."
    assert "group): scoundrel" in await order("/access words reset here")
    assert "everywhere): knave" in await order("/access words reset")


def shout(text: str) -> str:
    return text.upper()


def forbid(_text: str) -> Refusal:
    return Refusal("not here")


def forbid_badly(_text: str) -> Refusal:
    return Refusal(None)  # type: ignore[arg-type]


def forbid_leaking(_text: str) -> Refusal:
    return Refusal("sk-proj-FAKE0000000000000000000000000000")


def raising(_given: object) -> str:
    raise KeyError("sk-proj-FAKE0000000000000000000000000000")


def blocking(_given: object) -> str:
    time.sleep(3)
    return "late"


def junk(_given: object) -> object:
    return 7


def leaking(text: str) -> str:
    return f"{text} sk-proj-FAKE0000000000000000000000000000"


@pytest.mark.parametrize(
    ("hook", "shown", "note"),
    [
        (shout, "IT IS 5 PM.", ""),
        (forbid, INSTEAD, "withheld by the plug-in bad: not here"),
        (forbid_badly, INSTEAD, "withheld by the plug-in bad: "),
        (forbid_leaking, INSTEAD, "withheld by the plug-in bad: ***0000"),
        (raising, "It is 5 pm.", "the plug-in 'bad' failed: KeyError"),
        (blocking, "It is 5 pm.", "the plug-in 'bad' failed: no response within 0.2 s"),
        (junk, "It is 5 pm.", "the plug-in 'bad' failed: TypeError"),
        (leaking, "It is 5 pm. ***0000", ""),
    ],
)
async def test_plugin_hook_checks_the_answer_before_it_is_shown(
    database: Database, monkeypatch: pytest.MonkeyPatch, hook: object, shown: str, note: str
) -> None:
    monkeypatch.setitem(plugins.HOOKS, "check_answer", {"bad": hook})
    monkeypatch.setattr(plugins, "_TIMEOUT_SECONDS", 0.2 if hook is blocking else PATIENCE_SECONDS)
    setup = Setup(database, ["It is ", "5 pm."])

    await setup.say("What time is it?")

    assert setup.texts == [shown]
    assert {one.text for one in setup.surface.contents} == {shown}
    assert await setup.history() == [("user", "What time is it?"), ("assistant", shown)]
    [receipt] = await receipts(setup)
    assert (receipt.check, receipt.is_withheld) == (note, shown == INSTEAD)


@pytest.mark.parametrize(
    ("hook", "added", "note"),
    [
        (lambda context: [f"{context.author} is in {context.channel}."], True, None),
        (raising, False, "the plug-in 'bad' failed: KeyError"),
        (blocking, False, "the plug-in 'bad' failed: no response within 0.2 s"),
        (junk, False, "the plug-in 'bad' failed: TypeError"),
        (lambda _context: "moonlight", False, "the plug-in 'bad' failed: TypeError"),
    ],
)
async def test_plugin_hook_adds_parts_to_the_prompt(
    database: Database, monkeypatch: pytest.MonkeyPatch, hook: object, added: bool, note: str | None
) -> None:
    monkeypatch.setitem(plugins.HOOKS, "prompt_parts", {"bad": hook})
    monkeypatch.setattr(plugins, "_TIMEOUT_SECONDS", 0.2 if hook is blocking else PATIENCE_SECONDS)
    setup = Setup(database, ["Hello."])

    await setup.say("Hi")

    assert setup.texts == ["Hello."]
    [receipt] = await receipts(setup)
    newest = receipt.prompt.messages[-1].content
    assert newest == (f"Alice is in {CHAT}.\n\nHi" if added else "Hi")
    assert ("plugin" in tokens_by_section(receipt)) is added
    assert [(one.name, one.why) for one in receipt.dropped] == ([("bad", note)] if note else [])
