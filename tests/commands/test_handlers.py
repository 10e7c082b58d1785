"""Test the command handlers: their permissions, changes, and replies."""

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from typing_extensions import override

from bot.chat.command import Command, parse_command
from bot.chat.incoming import Person, Request
from bot.commands.handlers import COMMAND_NAMES, COMMANDS
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.storage.database import Database
from tests.samples import make_incoming
from tests.turn.setup import Setup as TurnSetup

ANYONE, ADMIN, ASKER, ASKER_ALONE = "anyone", "admin", "asker or admin", "asker alone"
DATA = json.loads(Path(__file__).with_name("commands.json").read_text("utf-8"))
ARGUMENTS = DATA["arguments"]
HERE = replace(make_incoming(), scopes=("telegram:5:7", "telegram:5", "discord:guild:1"))
BY = HERE.author.id
CHANNEL, SERVER = HERE.scopes[0], HERE.scopes[-1]


class Setup(TurnSetup):
    """The command handlers of a channel, with an author who may be an admin."""

    def __init__(self, database: Database, **settings: bool) -> None:
        first, *others = DATA["presets"]
        shown = {"private_prompts": True, "group_prompts": True}
        chosen = {"admins": frozenset({"telegram:99"}), **shown, **settings}
        super().__init__(database, preset=first, others=others, settings=chosen)
        self.handlers = self.container.command_handlers
        self.handlers.greetings.rng = random.Random(1)
        self.admin = True
        self.here = HERE
        self.asked: list[Request] = []

    @override
    async def _is_platform_admin(self, asked: Request) -> bool:
        self.asked.append(asked)
        if self.platform_error is not None:
            raise self.platform_error
        return self.admin

    async def use(self, scope: str, *names: str) -> None:
        await self.resolver.set_active_presets(
            scope, [*map(self.resolver.find, names)], "telegram:1"
        )

    async def run_command(self, line: str) -> CommandResult:
        command = parse_command(line)
        assert isinstance(command, Command)
        active = await self.resolver.resolve(HERE.scopes)
        return await self.handlers.handle(CommandRequest(command, self.here, active, (), HERE.at))

    async def active(self, scopes: Sequence[str] = HERE.scopes) -> list[str]:
        return [preset.name for preset in (await self.resolver.resolve(scopes)).presets]


def every_use() -> Iterator[tuple[str, str]]:
    """Yield each command with its actions and choices, and the permission in its summary."""
    for spec in COMMANDS:
        for action in spec.actions or (spec,):
            name = spec.name if action is spec else f"{spec.name} {action.name}"
            who = ADMIN if action.summary.endswith("(admins)") else ANYONE
            options = action.options
            if not options or not options[0].required or not options[0].choices:
                yield name, who
            if options:
                yield from ((f"{name} {choice}", who) for choice in options[0].choices)


WHO_MAY_USE = {**dict(every_use()), **DATA["who_may_use"]}
"""The permission for /stop is checked earlier: see tests/turn/test_commands.py."""


def test_expected_permissions_name_existing_commands() -> None:
    assert set(DATA["who_may_use"]) <= dict(every_use()).keys()


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database)


async def test_preset_use_sets_the_preset_and_starts_a_session(setup: Setup) -> None:
    reply = await setup.run_command("/preset use Nova")
    assert reply == CommandResult(
        "nova answers here from now on.",
        True,
        "Hi, Nova here.",
        "nova",
        changes_channel=True,
        keeps_unanswered_session=True,
    )
    assert await setup.active() == ["nova"]


async def test_preset_add_and_remove_keep_the_session(setup: Setup) -> None:
    joined = await setup.run_command("/preset add nova")
    assert joined == CommandResult(
        "nova was added. Active here: assistant, nova.",
        greeting="Hi, Nova here.",
        greeting_preset="nova",
        changes_channel=True,
    )
    assert (await setup.run_command("/preset show")).text == snapshot("""\
→ assistant: A helper.
→ nova
active here: chosen for this channel
/preset show NAME shows one of them.\
""")
    assert (await setup.run_command("/preset list")).text.count("→") == 2

    left = await setup.run_command("/preset remove assistant")
    assert left == CommandResult("assistant was removed. Active here: nova.", changes_channel=True)
    assert await setup.active() == ["nova"]


async def test_preset_add_in_a_thread_keeps_the_presets_of_the_channel(setup: Setup) -> None:
    await setup.use("telegram:5", "nova")
    await setup.run_command("/preset add assistant")
    assert await setup.active() == ["nova", "assistant"]
    assert await setup.active(HERE.scopes[1:]) == ["nova"]


async def test_preset_use_replaces_all_active_presets(setup: Setup) -> None:
    await setup.run_command("/preset add nova")
    await setup.run_command("/preset use nova")
    assert await setup.active() == ["nova"]


async def test_preset_reset_shows_the_inherited_preset_and_its_scope(setup: Setup) -> None:
    await setup.use("telegram:5", "nova")
    await setup.use("telegram:5:7", "assistant")
    reply = await setup.run_command("/preset reset")
    assert reply.text.splitlines()[0] == "Back to nova (inherited from the channel)."
    assert reply.starts_session


@pytest.mark.parametrize(
    ("scope", "origin"),
    [
        (None, "the default preset"),
        ("telegram:5:7", "chosen for this channel"),
        ("telegram:5", "inherited from the channel"),
        ("discord:guild:1", "inherited from the server"),
    ],
)
async def test_preset_list_shows_the_scope(setup: Setup, scope: str | None, origin: str) -> None:
    if scope:
        await setup.use(scope, "nova")
    assert (await setup.run_command("/preset list")).text.endswith(f"active here: {origin}")
    assert f"active here: {origin}" in (await setup.run_command("/preset show")).text


async def test_preset_list_marks_active_presets(setup: Setup) -> None:
    assert (await setup.run_command("/preset")).text == snapshot(
        """\
→ assistant: A helper.
· crowd
· fox
· nova
· translator
active here: the default preset\
"""
    )


async def test_preset_show_shows_instructions_only_to_admins(setup: Setup) -> None:
    assert "You are Nova." in (await setup.run_command("/preset show nova")).text
    setup.admin = False
    assert (await setup.run_command("/preset show nova")).text == snapshot("nova\nmodel: p / m")
    assert "version: 3" in (await setup.run_command("/preset show assistant")).text


@pytest.mark.parametrize(("line", "words"), DATA["refused"])
async def test_invalid_command_error_says_how_to_fix_it(
    setup: Setup, line: str, words: str
) -> None:
    with pytest.raises(UserError) as told:
        await setup.run_command(line)
    assert words in str(told.value)


@pytest.mark.parametrize("name", sorted(COMMAND_NAMES))
async def test_each_command_has_a_handler(setup: Setup, name: str) -> None:
    with contextlib.suppress(UserError):  # such as that a value is missing
        await setup.run_command(f"/{name}")


async def test_help_lists_every_command(setup: Setup) -> None:
    reply = await setup.run_command("/help")
    assert not reply.starts_session
    assert all(f"/{spec.name} – " in reply.text for spec in COMMANDS)


async def test_help_shows_the_fields_of_a_form(setup: Setup) -> None:
    await setup.use(HERE.scopes[0], "translator")

    reply = await setup.run_command("/help")

    assert reply.text.endswith(
        "This preset asks for values. Enter them like this:\n/ask from: …\nto: …"
    )


@pytest.mark.parametrize(
    ("active", "line", "greeting"),
    [
        (["fox"], "/new 2", "Ho, Alice."),
        (["fox"], "/new", "Hi, Alice."),
        (["crowd"], "/new", "Alone."),
        (["crowd", "nova"], "/new 2", "All of you."),
        (["nova"], "/new 1", "Hi, Nova here."),
    ],
)
async def test_new_with_a_number_selects_a_greeting(
    setup: Setup, active: list[str], line: str, greeting: str
) -> None:
    await setup.use(CHANNEL, *active)
    assert (await setup.run_command(line)).greeting == greeting


@pytest.mark.parametrize(
    ("active", "line", "problem"),
    [
        ("fox", "/new two", "^Greetings of fox: 2"),
        ("fox", "/new 3", "^Greetings of fox: 2"),
        ("fox", "/new 0", "^Greetings of fox: 2"),
        ("assistant", "/new 1", "^Greetings of assistant: 0"),
        ("nova", "/new 2", "^Greetings of nova: 1"),
    ],
)
async def test_new_rejects_invalid_greeting_numbers(
    setup: Setup, active: str, line: str, problem: str
) -> None:
    await setup.use(CHANNEL, active)
    with pytest.raises(UserError, match=problem):
        await setup.run_command(line)


async def test_operators_are_admins_everywhere(setup: Setup) -> None:
    setup.admin = False
    message = replace(HERE, author=Person("telegram:99", "Root"))
    active = await setup.resolver.resolve(HERE.scopes)
    request = CommandRequest(Command("preset", "use nova"), message, active, (), HERE.at)
    await setup.handlers.handle(request)
    assert await setup.active() == ["nova"]


async def test_preset_who_explains_a_command_and_a_single_character(setup: Setup) -> None:
    told = await setup.run_command("/preset who /help")
    assert told.text == "That is a command: no character answers it."
    told = await setup.run_command("/preset who good morning")
    assert told.text == (
        "→ assistant answers (score 0.0): is the only character here, was addressed by a mention"
    )


async def test_settings_why_command_fails_if_there_were_no_messages(setup: Setup) -> None:
    with pytest.raises(UserError, match="any messages here"):
        await setup.run_command("/settings why")


async def test_refused_admin_check_is_cached_for_thirty_seconds(setup: Setup) -> None:
    setup.here = replace(HERE, author_is_admin=None)
    for admin, asked in ((True, 1), (True, 2), (False, 3), (True, 3)):
        setup.admin = admin
        with contextlib.suppress(UserError):
            await setup.run_command("/preset use nova")
        assert len(setup.asked) == asked
    await setup.clock.advance(31)
    await setup.run_command("/preset use nova")
    assert len(setup.asked) == 4


async def test_anonymous_admins_count_as_admins_if_a_named_admin_allows_it(setup: Setup) -> None:
    named = setup.here
    group = Person(f"telegram:{named.address.chat}", "The group")
    anonymous = replace(named, author=group, author_is_admin=True)
    setup.here = anonymous
    for line in ("/preset use nova", "/settings anonymous on", "/forget channel"):
        with pytest.raises(UserError, match=r"Only an admin can .* Anonymous admins count"):
            await setup.run_command(line)

    setup.here = named
    told = await setup.run_command("/settings anonymous on")
    assert told.text.startswith("Admins who write anonymously now count")
    assert told.changes_channel

    setup.here = anonymous
    await setup.run_command("/preset use nova")
    assert await setup.active() == ["nova"]
    for line in ("/settings anonymous off", "/forget channel"):
        with pytest.raises(UserError, match="Only an admin who writes under their own name can"):
            await setup.run_command(line)

    setup.admin = False  # another group, or a channel: the platform says so
    with pytest.raises(UserError, match="Only an admin can"):
        await setup.run_command("/preset use assistant")

    setup.admin, setup.here = True, named
    await setup.run_command("/settings anonymous off")
    setup.here = anonymous
    with pytest.raises(UserError, match="Only an admin can"):
        await setup.run_command("/preset use assistant")


@pytest.mark.parametrize("is_private", [True, False])
async def test_only_operators_may_see_prompts(database: Database, is_private: bool) -> None:
    """Anybody can write in private or add the bot to a group, and then is an admin there."""
    setup = Setup(database, private_prompts=not is_private, group_prompts=is_private)
    setup.here = replace(HERE, is_private=is_private, author_is_admin=True)
    admins = setup.container.admins
    told = "Only the operators of this bot, the people in TROUPE_ADMINS, can see the exact prompt"
    with pytest.raises(UserError, match=told):
        await admins.require_prompt_access(setup.here, "see the exact prompt")
    assert not await admins.may_see_prompts(setup.here)
    operator = replace(setup.here, author=Person("telegram:99", "Olga"))
    assert await admins.may_see_prompts(operator)
    assert await admins.may_see_prompts(replace(operator, author_is_admin=None))
    assert await admins.may_see_prompts(replace(setup.here, is_private=not is_private))
    assert "instructions" not in (await setup.run_command("/preset show nova")).text
    with pytest.raises(UserError, match="Only the operators"):
        await setup.run_command("/context prompt")


async def test_changed_settings_are_audited_with_old_and_new_value(setup: Setup) -> None:
    for line in (
        *("/preset use nova", "/preset add fox", "/preset remove nova", "/preset reset"),
        *("/settings overhear off", "/settings overhear inherit"),
        *("/settings scope user", "/settings scope inherit"),
        *("/settings anonymous on", "/settings anonymous off"),
    ):
        await setup.run_command(line)
    noted = [
        ("set preset", CHANNEL, "", "nova"),
        ("set preset", CHANNEL, "nova", "nova\nfox"),
        ("set preset", CHANNEL, "nova\nfox", "fox"),
        ("reset preset", CHANNEL, "fox", ""),
        ("set observe", CHANNEL, "", "off"),
        ("reset observe", CHANNEL, "off", ""),
        ("set scope", CHANNEL, "", "user"),
        ("reset scope", CHANNEL, "user", ""),
        ("set anonymous_admins", CHANNEL, "", "on"),
        ("reset anonymous_admins", CHANNEL, "on", ""),
    ]
    entries = [(BY, *one) for one in noted]
    assert await read_audit(setup) == entries


async def test_command_repeated_after_a_crash_is_audited_once(setup: Setup) -> None:
    for _ in range(2):  # as after the death of a process
        await setup.run_command("/preset use nova")
    assert [one[1] for one in await read_audit(setup)] == ["set preset"]


async def test_refused_actions_and_self_descriptions_are_not_audited(setup: Setup) -> None:
    await setup.run_command("/me A tall knight.")
    setup.admin = False
    for line in ("/preset use nova", "/settings overhear off", "/forget channel"):
        with pytest.raises(UserError):
            await setup.run_command(line)
    assert await read_audit(setup) == []


async def test_changes_in_a_private_chat_are_not_audited(setup: Setup) -> None:
    setup.here = replace(HERE, is_private=True)
    for line in ("/preset use nova", "/settings overhear off", "/forget channel"):
        await setup.run_command(line)
    assert await read_audit(setup) == []


async def read_audit(setup: Setup) -> list[tuple[str, str, str, str, str]]:
    """Return the audit entries, oldest first."""
    newest = await setup.audit.newest(100)
    return [(one.who, one.action, one.subject, one.before, one.after) for one in newest][::-1]
