"""What people command is carried out for those who may, and said in words."""

import random
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from bot.chat.command import Command
from bot.chat.incoming import Incoming
from bot.commands.context import ContextView
from bot.commands.handlers import CommandHandlers, CommandResult
from bot.commands.personas import UserPersonas
from bot.errors import UserError
from bot.prompting.presets.preset import Preset
from bot.routing.active_presets import PresetResolver
from bot.routing.command_specs import COMMANDS, parse
from bot.runtime.clock import SystemClock
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database
from bot.storage.sql.receipts import SqlReceipts
from tests.samples import incoming, mask, write_out

PRESETS: dict[str, Preset] = {
    str(one["name"]): Preset.model_validate({"provider": "p", "model": "m", **one})
    for one in (
        {"name": "assistant", "description": "A helper."},
        {"name": "translator", "prompter": {"kind": "chat", "instruction": "{from} to {to}:"}},
        {"name": "nova", "system": "You are Nova.", "greeting": "Hi, Nova here."},
        {
            "name": "fox",
            "greeting": "Hi, {{user}}.",
            "alternate_greetings": ["Ho, {{user}}."],
            "macros": True,
        },
    )
}
HERE = replace(incoming(), scopes=("telegram:5:7", "telegram:5", "discord:guild:1"))


class Setup:
    def __init__(self, database: Database) -> None:
        choices = SqlChatSettings(database, SystemClock())
        self.resolver = PresetResolver(PRESETS, "assistant", choices, {"nova": 4})
        self.handlers = CommandHandlers(
            self.resolver,
            self.may_change,
            COMMANDS,
            ContextView(SqlReceipts(database), write_out, mask),
            UserPersonas(choices),
            random.Random(1),
        )
        self.admin = True
        self.asked: list[Incoming] = []

    async def may_change(self, incoming: Incoming) -> bool:
        self.asked.append(incoming)
        return self.admin

    async def run_command(self, line: str) -> CommandResult:
        command = parse(line)
        assert isinstance(command, Command)
        return await self.handlers.handle(command, HERE)

    async def active_preset(self) -> str:
        return (await self.resolver.resolve_first(HERE.scopes)).preset.name


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database)


async def test_an_admin_lets_a_preset_answer_here(setup: Setup) -> None:
    reply = await setup.run_command("/preset use Nova")
    assert reply == CommandResult(
        "nova answers here from now on.\n\nHi, Nova here.", True, "Hi, Nova here.", "nova"
    )
    assert await setup.active_preset() == "nova"


async def test_characters_join_and_leave_and_the_talk_goes_on(setup: Setup) -> None:
    joined = await setup.run_command("/preset add nova")
    assert joined == CommandResult(
        "nova joins. Here are now: assistant, nova.\n\nHi, Nova here.",
        greeting="Hi, Nova here.",
        greeter="nova",
    )
    assert (await setup.run_command("/preset show")).text == snapshot("""\
→ assistant: A helper.
→ nova
used here: chosen here
/preset show NAME tells more.\
""")
    assert (await setup.run_command("/preset list")).text.count("→") == 2

    left = await setup.run_command("/preset remove assistant")
    assert left == CommandResult("assistant leaves. Here are now: nova.")
    assert await setup.active_preset() == "nova"


async def test_who_joins_in_a_thread_joins_those_of_the_channel(setup: Setup) -> None:
    await setup.resolver.use("telegram:5", PRESETS["nova"], "telegram:1")
    await setup.run_command("/preset add assistant")
    here = await setup.resolver.resolve(HERE.scopes)
    above = await setup.resolver.resolve(HERE.scopes[1:])
    assert [cast.preset.name for cast in here] == ["nova", "assistant"]
    assert [cast.preset.name for cast in above] == ["nova"]


async def test_use_makes_one_the_only_one(setup: Setup) -> None:
    await setup.run_command("/preset add nova")
    await setup.run_command("/preset use nova")
    assert len(await setup.resolver.resolve(HERE.scopes)) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/preset add", "Which preset?"),
        ("/preset add assistant", "assistant is here already."),
        ("/preset remove nova", "nova is not here"),
        ("/preset remove assistant", "assistant is the only one here"),
        ("/preset remove", "Which preset?"),
    ],
)
async def test_nobody_joins_twice_and_somebody_stays(setup: Setup, line: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        await setup.run_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "/preset use nova",
        "/preset add nova",
        "/preset remove assistant",
        "/preset reset",
        "/forget",
        "/context prompt",
    ],
)
async def test_nobody_else_changes_what_others_see(setup: Setup, line: str) -> None:
    setup.admin = False
    with pytest.raises(UserError, match="Only an admin"):
        await setup.run_command(line)
    assert await setup.active_preset() == "assistant"


async def test_who_may_is_asked_each_time(setup: Setup) -> None:
    await setup.run_command("/preset use nova")
    setup.admin = False
    with pytest.raises(UserError):
        await setup.run_command("/preset reset")
    assert setup.asked == [HERE, HERE]
    assert await setup.active_preset() == "nova"


async def test_resetting_goes_back_to_what_is_inherited_and_says_from_where(
    setup: Setup,
) -> None:
    await setup.resolver.use("telegram:5", PRESETS["nova"], "telegram:1")
    await setup.resolver.use("telegram:5:7", PRESETS["assistant"], "telegram:1")
    reply = await setup.run_command("/preset reset")
    assert reply.text.splitlines()[0] == "Back to nova (inherited from the channel)."
    assert reply.new_session


@pytest.mark.parametrize(
    ("scope", "origin"),
    [
        (None, "the default"),
        ("telegram:5:7", "chosen here"),
        ("telegram:5", "inherited from the channel"),
        ("discord:guild:1", "inherited from the server"),
    ],
)
async def test_a_view_says_where_the_preset_comes_from(
    setup: Setup, scope: str | None, origin: str
) -> None:
    if scope:
        await setup.resolver.use(scope, PRESETS["nova"], "telegram:1")
    assert (await setup.run_command("/preset list")).text.endswith(f"({origin})")
    assert f"used here: {origin}" in (await setup.run_command("/preset show")).text


async def test_the_list_marks_who_answers(setup: Setup) -> None:
    assert (await setup.run_command("/preset")).text == snapshot(
        """\
→ assistant: A helper.
· fox
· nova
· translator
(the default)\
"""
    )


async def test_instructions_are_shown_to_admins_only(setup: Setup) -> None:
    assert "You are Nova." in (await setup.run_command("/preset show nova")).text
    setup.admin = False
    assert (await setup.run_command("/preset show nova")).text == snapshot(
        "nova\nmodel: p / m\nversion: 4"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/preset use", "Which preset?"),
        ("/preset use novva", "did you mean 'nova'"),
        (
            "/preset delete nova",
            "There is no /preset delete; try use, add, remove, list, show, who or reset.",
        ),
        ("/ask hi", "There is nothing to fill in here; just write your message."),
        ("/context promt", "Say /context, or /context prompt for the exact prompt (admins)."),
        ("/fly", "I do not know /fly. /help says what I can do."),
    ],
)
async def test_what_cannot_be_done_is_said_with_the_remedy(
    setup: Setup, line: str, words: str
) -> None:
    with pytest.raises(UserError) as told:
        await setup.run_command(line)
    assert words in str(told.value)


async def test_a_new_conversation_begins_with_the_greeting_of_who_answers(setup: Setup) -> None:
    assert await setup.run_command("/new") == CommandResult(
        "A new conversation begins.", True, None
    )
    await setup.run_command("/preset use nova")
    assert (await setup.run_command("/new")).greeting == "Hi, Nova here."


@pytest.mark.parametrize("line", ["/help", "/start"])
async def test_help_names_every_command(setup: Setup, line: str) -> None:
    reply = await setup.run_command(line)
    assert not reply.new_session
    assert all(f"/{spec.name} – " in reply.text for spec in COMMANDS)


async def test_help_shows_what_to_fill_in(setup: Setup) -> None:
    await setup.resolver.use(HERE.scopes[0], PRESETS["translator"], "telegram:1")

    reply = await setup.run_command("/help")

    assert reply.text.endswith("Here I answer what is filled in:\n/ask from: …\nto: …")


async def test_new_begins_with_the_greeting_that_was_asked_for(setup: Setup) -> None:
    await setup.run_command("/preset use fox")

    assert (await setup.run_command("/new 2")).greeting == "Ho, Alice."
    assert (await setup.run_command("/new")).greeting in {"Hi, Alice.", "Ho, Alice."}
    with pytest.raises(UserError, match="Give its number"):
        await setup.run_command("/new two")


async def test_me_is_carried_out_without_being_an_admin(setup: Setup) -> None:
    setup.admin = False

    assert (await setup.run_command("/me a knight")).text == "You are, here: a knight"
    assert (await setup.run_command("/me")).text == "You are: a knight"


async def test_forgetting_begins_anew(setup: Setup) -> None:
    assert await setup.run_command("/forget") == CommandResult(
        "A new conversation begins.", new_session=True, forgets=True
    )
