"""Test that refused people are neither answered nor remembered, and what they may still do."""

from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import Person, Quote, Request, Said, WakeReason
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeSurface, PrivatePlatform
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, pressed

CAROL = Person("telegram:3", "Carol")
SERVER = "telegram:guild:9"
OPERATOR = Person("telegram:99", "Olga")
KEPT = "You may not use me where you wrote to me."


class Group(Setup):
    """A channel of a server: everybody but Bob and Carol is an admin, as far as it knows."""

    def __init__(self, database: Database, *, reads_all: bool = True) -> None:
        context = "all" if reads_all else "addressed"
        settings = {"admins": frozenset({OPERATOR.id})}
        surface = FakeSurface(replace(LIMITS, has_private_chats=True))
        super().__init__(
            *(database, ["Hi."]),
            preset={"context": context},
            settings=settings,
            surface=surface,
            platforms={"telegram": PrivatePlatform("telegram", surface)},
        )
        self.count = 0

    @override
    async def _is_platform_admin(self, asked: Request) -> bool:
        return asked.author == ALICE

    def said(self, text: str, by: Person = BOB, **changes: object) -> Said:
        self.count += 1
        wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.MENTION
        said = make_incoming(text, key=f"5:{self.count}", author=by, wake=wake, admin=None)
        return replace(said, scopes=("telegram:5", SERVER), **changes)  # type: ignore[arg-type]

    async def hears(self, text: str, by: Person = BOB, **changes: object) -> list[str]:
        """Return what the bot says to it, except that the person is refused."""
        before = len(self.texts)
        await self.say(self.said(text, by, **changes))
        return [one for one in self.texts[before:] if not one.startswith(KEPT)]

    def refusals(self) -> list[tuple[str, str]]:
        """Return where people were told that they are refused, and with which words."""
        sent = ((one.address.chat, one.content.text) for one in self.surface.sent)
        return [(chat, text) for chat, text in sent if text.startswith(KEPT)]


@pytest.fixture
def group(database: Database) -> Group:
    return Group(database)


async def test_blocked_person_is_neither_answered_nor_remembered(group: Group) -> None:
    assert await group.hears("/access block telegram:2", ALICE) == [
        "Saved: block person telegram:2."
    ]
    assert await group.hears("hello") == []
    assert await group.hears("to others", wake=None) == []
    assert await group.history() == []
    assert await group.hears("hello", CAROL) == ["Hi."]
    assert len(group.backend.prompts) == 1


async def test_blocked_person_hears_it_once_in_private(group: Group) -> None:
    await group.hears("/access block telegram:2", ALICE)
    for text in ("hello", "hello again"):
        assert await group.hears(text) == []
        [(chat, told)] = group.refusals()
        assert (chat, told.startswith(f"{KEPT} You are blocked there.")) == ("dm-2", True)
    data = group.container.personal_data
    assert await data.settings_of(BOB.id) == [(f"{BOB.id}@telegram:5", "persona told")]
    await group.container.personas.forget(BOB.id, await data.settings_of(BOB.id))
    assert await data.settings_of(BOB.id) == []


@pytest.mark.parametrize("command", ["/export", "/settings me off", "/forget me"])
async def test_refused_people_may_still_see_and_delete_their_words(
    group: Group, command: str
) -> None:
    await group.hears("/access off", ALICE)
    [reply] = await group.hears(command)
    assert reply
    if command == "/forget me":
        await group.say(pressed(ButtonAction.FORGET, f"telegram:5:{group.count}/0", by=BOB))
        assert any("deleting everything" in text for text in group.texts)


async def test_channel_that_is_off_answers_nobody_until_it_is_on(group: Group) -> None:
    [reply] = await group.hears("/access off", ALICE)
    assert reply.startswith("I am switched off here")
    for by in (BOB, ALICE, OPERATOR):
        assert await group.hears("hello", by) == []
    assert await group.hears("/access on", BOB) == []
    assert await group.hears("/access on", ALICE) == ["I am switched on here."]
    assert await group.hears("hello") == ["Hi."]


async def test_level_that_allows_somebody_refuses_the_others_but_no_admins(group: Group) -> None:
    [saved] = await group.hears("/access allow role 7 server", ALICE)
    assert (
        saved
        == "Saved: allow role telegram:7.\nNobody else may use me now (in the server or group)."
    )
    assert await group.hears("hello") == []
    assert await group.hears("hello", author_roles=("telegram:7",)) == ["Hi."]
    assert await group.hears("hello", ALICE) == ["Hi."]
    await group.hears("/access block telegram:2", ALICE)  # the channel is narrower
    assert await group.hears("hello", author_roles=("telegram:7",)) == []
    shown = (await group.hears("/access show", ALICE))[0].splitlines()
    assert shown == [
        "here: block person telegram:2",
        "in the server or group: allow role telegram:7",
        "Without being an admin, you could not use me here: only (in the server or group).",
    ]
    await group.hears("/access reset telegram:2", ALICE)
    assert await group.hears("hello", author_roles=("telegram:7",)) == ["Hi."]


async def test_admins_follow_the_rules_of_operators(group: Group) -> None:
    assert await group.hears("/access block telegram:1 everywhere", ALICE) == [
        "⚠ Only the operators of this bot, the people in TROUPE_ADMINS, can choose that."
    ]
    await group.hears("/access block telegram:1 everywhere", OPERATOR)
    assert await group.hears("hello", ALICE) == []
    assert await group.hears("/access show", ALICE) == []
    await group.hears("/access block telegram:99 everywhere", OPERATOR)
    assert await group.hears("hello", OPERATOR) == ["Hi."]


async def test_target_is_the_author_of_the_message_replied_to(group: Group) -> None:
    quote = Quote(CAROL, "4", "spam")
    assert await group.hears("/access block server", ALICE, quote=quote) == [
        "Saved: block person telegram:3."
    ]
    assert await group.hears("hello", CAROL) == []


async def test_refusal_is_named_to_admins_without_the_words(group: Group) -> None:
    await group.hears("/access block telegram:2", ALICE)
    await group.hears("a secret")
    [why] = await group.hears("/settings why", ALICE)
    assert why.splitlines()[-1] == "Bob may not use me here: block person telegram:2 (telegram:5)"


async def test_refused_people_press_no_buttons_and_change_no_answers(group: Group) -> None:
    asked = group.said("hello")
    await group.say(asked)
    await group.hears("/access block telegram:2", ALICE)
    press = pressed(ButtonAction.RETRY, "telegram:5:1/0", by=BOB)
    await group.say(replace(press, scopes=asked.scopes))
    assert group.texts[-1] == "⚠ Bob: You may not use me here. /forget me and /export still work."
    assert len(group.backend.prompts) == 1


async def test_only_admins_see_and_change_rules(group: Group) -> None:
    for command in ("/access show", "/access block telegram:1", "/access off"):
        [reply] = await group.hears(command)
        assert reply.startswith("⚠ Only an admin can")
