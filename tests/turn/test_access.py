"""Test that people without access are neither answered nor stored, and what they can still do."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    IncomingMessage,
    MessageEdit,
    Person,
    Quote,
    Request,
    SayRequest,
    WakeReason,
)
from bot.errors import StoreError
from bot.settings import AccessSettings
from bot.storage.database import Database
from bot.storage.operation import PauseStore
from tests.fakes import LIMITS, CallingFakeBackend, FakeSurface, PrivatePlatform
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, pressed, stop_while_answering

CAROL = Person("telegram:3", "Carol")
SERVER = "telegram:guild:9"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
OPERATOR = Person("telegram:99", "Olga")
KEPT = "You may not use me where you just wrote to me."


class Group(Setup):
    """A channel in a server where everybody except Bob and Carol is an admin."""

    def __init__(
        self, database: Database, access: AccessSettings | None = None, **preset: object
    ) -> None:
        settings = {"admins": frozenset({OPERATOR.id}), "access": access or AccessSettings()}
        surface = FakeSurface(replace(LIMITS, has_private_chats=True))
        super().__init__(
            database,
            backend=CallingFakeBackend(["Hi."]),
            preset={"context": "all", **preset},
            others=[{"name": "nova"}],
            settings=settings,
            surface=surface,
            platforms={"telegram": PrivatePlatform("telegram", surface)},
        )
        self.count = self.asked_about_admins = 0
        self.admins = {ALICE}

    @override
    async def _is_platform_admin(self, asked: Request) -> bool:
        self.asked_about_admins += 1
        return bool(asked.author_is_admin) or asked.author in self.admins

    def said(self, text: str, by: Person = BOB, **changes: object) -> IncomingMessage:
        self.count += 1
        wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.MENTION
        said = make_incoming(text, key=f"5:{self.count}", author=by, wake=wake, admin=None)
        return replace(said, scopes=("telegram:5", SERVER), **changes)  # type: ignore[arg-type]

    async def hears(self, text: str, by: Person = BOB, **changes: object) -> list[str]:
        """Return the bot's replies to a message, except refusals."""
        before = len(self.texts)
        await self.say(self.said(text, by, **changes))
        return [one for one in self.texts[before:] if not one.startswith(KEPT)]

    def refusals(self) -> list[tuple[str, str]]:
        """Return the chat and text of each refusal."""
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


async def test_blocked_person_is_notified_once_in_private(group: Group) -> None:
    await group.hears("/access block telegram:2", ALICE)
    for text in ("hello", "hello again"):
        assert await group.hears(text) == []
        [(chat, told)] = group.refusals()
        assert (chat, told.startswith(f"{KEPT} You are blocked there.")) == ("dm-2", True)
    data = group.container.personal_data
    assert await data.list_settings(BOB.id) == [(f"{BOB.id}@telegram:5", "persona told")]
    await group.container.personas.delete_settings(BOB.id, await data.list_settings(BOB.id))
    assert await data.list_settings(BOB.id) == []


@pytest.mark.parametrize("command", ["/export", "/settings me off", "/forget me"])
async def test_refused_people_can_still_export_and_delete_their_data(
    group: Group, command: str
) -> None:
    await group.hears("/access off", ALICE)
    [reply] = await group.hears(command)
    assert reply
    if command == "/forget me":
        await group.say(pressed(ButtonAction.FORGET, f"telegram:5:{group.count}/0", by=BOB))
        assert any("deleting everything" in text for text in group.texts)


async def test_nobody_is_answered_in_a_switched_off_channel(group: Group) -> None:
    [reply] = await group.hears("/access off", ALICE)
    assert reply.startswith("I'm switched off here")
    for by in (BOB, ALICE, OPERATOR):
        assert await group.hears("hello", by) == []
    assert await group.hears("/access on", BOB) == []
    assert await group.hears("/access show", ALICE) == ["here: off\nI'm still switched off here."]
    assert await group.hears("/access on", ALICE) == ["I am switched on here."]
    assert await group.hears("hello") == ["Hi."]


@pytest.mark.parametrize(("scope", "is_said"), [("telegram:5", False), ("telegram:6", True)])
async def test_api_cannot_send_to_a_channel_where_the_bot_is_off(
    group: Group, scope: str, *, is_said: bool
) -> None:
    await group.container.chat_settings.set(scope, "access off", "on", "web:console")
    await PauseStore(group.database, group.clock).begin("all", "anna")
    await group.pauses.refresh()
    scopes = (group.said("").address.lane, SERVER)
    asked = SayRequest(group.said("").address, "say:1", "The washer is done.", NOON, scopes)
    await group.say(asked)
    assert group.texts == (["The washer is done."] if is_said else [])


async def test_switching_a_channel_off_does_not_bypass_rules_of_operators(
    group: Group,
) -> None:
    await group.hears("/access block telegram:1 everywhere", OPERATOR)
    await group.hears("/access off", OPERATOR)
    assert await group.hears("/access allow telegram:1", ALICE) == []
    assert await group.hears("/privacy edit Mine.", ALICE) == []
    await group.hears("/access on", OPERATOR)
    assert await group.hears("hello", ALICE) == []


async def test_edit_by_a_refused_person_is_not_stored(group: Group) -> None:
    first = group.said("hello")
    await group.say(first)
    await group.hears("/access block telegram:2", ALICE)
    changed = replace(first, text="slipped in", external_key=f"{first.external_key}:edit")
    await group.say(MessageEdit(changed.external_key, changed, changed.at))
    assert [text for role, text in await group.history() if role == "user"] == ["hello"]


async def test_scope_with_an_allow_rule_refuses_everybody_else_except_admins(group: Group) -> None:
    [saved] = await group.hears("/access allow role 7 server", ALICE)
    assert (
        saved == "Saved: allow role telegram:7.\nOnly people with an allow rule may use me now"
        " (in the server or group)."
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
        "You may use me here only because you are an admin; for others, this rule applies: only"
        " (in the server or group).",
    ]
    await group.hears("/access reset telegram:2", ALICE)
    assert await group.hears("hello", author_roles=("telegram:7",)) == ["Hi."]


async def test_allow_list_check_caches_who_is_an_admin(group: Group) -> None:
    await group.hears("/access allow telegram:3", ALICE)
    asked = group.asked_about_admins
    for _ in range(3):
        assert await group.hears("hello", ALICE) == ["Hi."]
    assert group.asked_about_admins <= asked + 1
    await group.clock.advance(31)
    group.admins.clear()
    assert await group.hears("hello", ALICE) == []


async def test_access_rules_of_operators_also_apply_to_admins(group: Group) -> None:
    assert await group.hears("/access block telegram:1 everywhere", ALICE) == [
        "⚠ Only the operators of this bot, the people in TROUPE_ADMINS, can choose that."
    ]
    await group.hears("/access block telegram:1 everywhere", OPERATOR)
    assert await group.hears("hello", ALICE) == []
    assert await group.hears("/access show", ALICE) == []
    await group.hears("/access block telegram:99 everywhere", OPERATOR)
    assert await group.hears("hello", OPERATOR) == ["Hi."]


async def test_access_command_targets_the_author_of_the_replied_to_message(group: Group) -> None:
    quote = Quote(CAROL, "4", "spam")
    assert await group.hears("/access block server", ALICE, quote=quote) == [
        "Saved: block person telegram:3."
    ]
    assert await group.hears("hello", CAROL) == []


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("3", "person telegram:3"),
        ("discord:3", "person discord:3"),
        ("role discord:3", "role discord:3"),
        ("<@!3>", "person telegram:3"),
        ("<@&3>", "role telegram:3"),
        ("-1003", "channel telegram:-1003"),
        ("channel discord@77:3", "channel discord@77:3"),
    ],
)
async def test_access_command_accepts_targets_in_many_forms(
    group: Group, words: str, target: str
) -> None:
    line = f"/access block {words} everywhere"
    assert await group.hears(line, OPERATOR) == [f"Saved: block {target}."]


async def test_admins_see_refusals_without_the_message_texts(group: Group) -> None:
    await group.hears("/access block telegram:2", ALICE)
    await group.hears("a secret")
    [why] = await group.hears("/settings why", ALICE)
    assert why.splitlines()[-1] == "Bob may not use me here: block person telegram:2 (telegram:5)"


async def test_refused_people_cannot_press_buttons_or_change_answers(group: Group) -> None:
    asked = group.said("hello")
    await group.say(asked)
    await group.hears("/access block telegram:2", ALICE)
    press = pressed(ButtonAction.RETRY, "telegram:5:1/0", by=BOB)
    await group.say(replace(press, scopes=asked.scopes))
    assert group.texts[-1] == "⚠ Bob: You may not use me here. /forget me and /export still work."
    assert len(group.backend.prompts) == 1


async def test_only_admins_can_see_and_change_access_rules(group: Group) -> None:
    for command in ("/access show", "/access block telegram:1", "/access off"):
        [reply] = await group.hears(command)
        assert reply.startswith("⚠ Only an admin can")


ROLE = ("telegram:7",)


async def test_role_may_run_the_admin_commands_granted_to_it(group: Group) -> None:
    use = "/preset use nova"
    assert await group.hears(use, author_roles=ROLE) == [
        "⚠ Only an admin can change who answers here."
    ]
    assert await group.hears("/access command preset use role 7", ALICE) == [
        "Saved: command preset use role telegram:7."
    ]
    assert await group.hears(use, author_roles=ROLE) == ["nova answers here from now on."]
    assert "Only an admin" in (await group.hears(use))[0]
    assert "Only an admin" in (await group.hears("/preset reset", author_roles=ROLE))[0]
    await group.hears("/access reset command preset use role 7", ALICE)
    assert "Only an admin" in (await group.hears(use, author_roles=ROLE))[0]


@pytest.mark.parametrize("name", ["access block", "access", "settings anonymous", "fly"])
async def test_commands_that_grant_permissions_cannot_be_granted_to_a_role(
    group: Group, name: str
) -> None:
    [reply] = await group.hears(f"/access command {name} role 7", ALICE)
    assert reply.startswith("⚠ Which command, and for which role?")


async def test_tools_are_offered_only_to_people_with_the_required_role(database: Database) -> None:
    group = Group(database, tools=["dice"])
    await group.hears("/access tools role 7 server", ALICE)
    await group.hears("roll", author_roles=ROLE)
    await group.hears("roll")
    assert [bool(prompt.tools) for prompt in group.backend.prompts] == [True, False]


async def test_people_without_the_required_role_are_answered_by_the_fallback(
    database: Database,
) -> None:
    group = Group(database, fallbacks=[{"provider": "p", "model": "small"}])
    await group.hears("/access model role 7", ALICE)
    await group.hears("hello", author_roles=ROLE)
    await group.hears("hello")
    await group.hears("hello", OPERATOR)
    assert [prompt.model for prompt in group.backend.prompts] == ["m", "small", "m"]


async def test_preset_without_a_fallback_refuses_people_without_the_required_role(
    group: Group,
) -> None:
    await group.hears("/access model telegram:2", ALICE)
    assert await group.hears("hello") == ["Hi."]
    [refusal] = await group.hears("hello", CAROL)
    assert refusal.startswith("⚠ Only some roles may use this character's model here")


class PrivateChat(Group):
    """Private chats, and operators' settings for them."""

    async def writes(self, by: Person, text: str = "hello") -> str:
        """Write to the bot in private; return its reply, or an empty text."""
        self.count += 1
        number, before = by.id.partition(":")[2], len(self.texts)
        said = make_incoming(text, key=f"{number}:{self.count}", chat=number, author=by)
        await self.receive(replace(said, is_private=True, author_is_admin=True))
        await self.work(f"telegram:{number}")
        return "\n".join(self.texts[before:])

    async def chooses(self, line: str) -> str:
        return await self.writes(OPERATOR, line)


@pytest.fixture
def private(database: Database) -> PrivateChat:
    return PrivateChat(database)


async def test_only_operators_and_allowed_people_are_answered_in_closed_private_chats(
    private: PrivateChat,
) -> None:
    assert (await private.writes(BOB, "/access dm closed")).startswith("⚠ Only the operators")
    await private.chooses("/access dm closed")
    assert "In private chats, I answer only some people." in await private.writes(BOB)
    assert await private.writes(BOB) == ""
    assert await private.writes(OPERATOR) == "Hi."
    assert "Everything you said to me" in await private.writes(BOB, "/export")
    await private.chooses("/access dm open")
    assert await private.writes(BOB) == "Hi."


async def test_person_approved_by_a_pairing_code_is_answered(private: PrivateChat) -> None:
    await private.chooses("/access dm pairing")
    code = (await private.writes(BOB)).rpartition(": ")[2]
    assert re.fullmatch("[A-Z2-9]{8}", code)
    assert await private.writes(BOB) == ""
    assert "code" not in await private.chooses("/access show")
    assert await private.chooses(f"/access approve {code.lower()}") == (
        "telegram:2 may write to me in private."
    )
    await private.work("telegram:2")
    assert private.texts[-1].startswith("I am nora.")
    assert await private.writes(BOB) == "Hi."
    assert (await private.chooses(f"/access approve {code}")).startswith("⚠ That code is unknown")
    await private.chooses("/access reset telegram:2 everywhere")
    assert "your code" in await private.writes(BOB)


async def test_pairing_approval_interrupted_by_a_crash_runs_again(private: PrivateChat) -> None:
    await private.chooses("/access dm pairing")
    code = (await private.writes(BOB)).rpartition(": ")[2]
    private.conversations.full = True
    with pytest.raises(StoreError):
        await private.chooses(f"/access approve {code}")
    private.conversations.full = False
    await private.work(f"telegram:{OPERATOR.id.partition(':')[2]}")
    assert private.texts[-1] == "telegram:2 may write to me in private."
    assert (await private.writes(BOB)).endswith("Hi.")
    assert (await private.chooses(f"/access approve {code}")).startswith("⚠ That code is unknown")


async def test_three_pairing_codes_are_valid_at_a_time_for_an_hour(private: PrivateChat) -> None:
    await private.chooses("/access dm pairing")
    people = [Person(f"telegram:{number}", "P") for number in range(20, 24)]
    codes = [(await private.writes(one)).rpartition(": ")[2] for one in people]
    assert "Too many people wait" in codes[3] or "try again later" in codes[3]
    await private.clock.advance(3601)
    assert (await private.chooses(f"/access approve {codes[0]}")).startswith(
        "⚠ That code is unknown"
    )
    assert "your code" in await private.writes(people[3])


async def test_ten_wrong_pairing_codes_block_approval_for_an_hour(private: PrivateChat) -> None:
    await private.chooses("/access dm pairing")
    for _ in range(10):
        assert (await private.chooses("/access approve WRONG234")).startswith(
            "⚠ That code is unknown"
        )
    code = (await private.writes(BOB)).rpartition(": ")[2]
    locked = await private.chooses(f"/access approve {code}")
    assert locked == "⚠ Too many wrong codes. Please try again in an hour."
    await private.clock.advance(3601)
    code = (await private.writes(BOB)).rpartition(": ")[2]
    assert "may write to me" in await private.chooses(f"/access approve {code}")


async def test_environment_variables_restrict_who_may_write_in_private(database: Database) -> None:
    access = AccessSettings(block="telegram:2, role discord:9", dm="closed", tell=False)
    private = PrivateChat(database, access=access)
    assert await private.writes(CAROL) == ""
    assert await private.hears("hello") == []
    assert await private.hears("hello", CAROL) == ["Hi."]
    assert "TROUPE_ACCESS__DM decides" in await private.chooses("/access dm open")
    shown = await private.chooses("/access show")
    assert "everywhere: block person telegram:2" in shown.splitlines()
    with pytest.raises(ValidationError, match="'bob' is not of the form"):
        AccessSettings(allow="bob")


async def test_switching_a_channel_off_stops_the_current_answer(database: Database) -> None:
    setup = Setup(database, ["Once", asyncio.Event()])
    off = make_incoming("/access off", key="5:8", wake=WakeReason.COMMAND)
    await stop_while_answering(setup, make_incoming("hello", author=BOB), off)
    assert setup.texts[-1].startswith("I'm switched off here")
