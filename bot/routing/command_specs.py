"""The commands of the bot, and how a line of text is parsed into one."""

from bot.chat.command import Command, CommandOption, CommandSpec, MessageCommandSpec
from bot.chat.session import HistoryScope
from bot.texts.text import marked

COMMANDS = (
    CommandSpec(
        "preset",
        marked("choose who answers here: use, add, remove, list, show, who, reset, menu"),
        actions=(
            CommandSpec(
                "use",
                marked("make this preset answer in this channel (admins)"),
                (CommandOption("name", marked("the preset"), completes=True),),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec(
                "add",
                marked("let one more character answer here (admins)"),
                (CommandOption("name", marked("the preset"), completes=True),),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec(
                "remove",
                marked("remove a character; the others stay (admins)"),
                (CommandOption("name", marked("the preset"), completes=True),),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec("list", marked("list all presets and mark the active ones")),
            CommandSpec(
                "who",
                marked("tell who would answer a message, and why"),
                (CommandOption("text", marked("the message")),),
            ),
            CommandSpec(
                "show",
                marked("show a preset; without a name: the active one"),
                (CommandOption("name", marked("the preset"), required=False, completes=True),),
            ),
            CommandSpec(
                "reset",
                marked("undo the choice of presets for this channel (admins)"),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec("menu", marked("show who answers here, and choose from a list")),
        ),
        is_for_admins=True,
    ),
    CommandSpec(
        "new",
        marked("begin a new conversation; `/new 2` with the second greeting"),
        (
            CommandOption(
                "greeting", marked("the number of the greeting to begin with"), required=False
            ),
        ),
        changes_channel=True,
    ),
    CommandSpec(
        "me",
        marked(
            "describe yourself in this channel; `everywhere TEXT` for all channels, `clear` deletes"
            " it"
        ),
        (CommandOption("text", marked("for example: I am a tall knight"), required=False),),
    ),
    CommandSpec(
        "stop", marked("stop the answer that is being written; what was written so far stays")
    ),
    CommandSpec("retry", marked("answer the newest question again")),
    CommandSpec("undo", marked("remove the newest question and its answer from the conversation")),
    CommandSpec(
        "forget",
        marked(
            "delete all you said (me), the newest question (last), all here (channel) or the"
            " message replied to"
        ),
        (
            CommandOption(
                "what",
                marked("me, last or channel"),
                required=False,
                choices=("me", "last", "channel"),
            ),
        ),
    ),
    CommandSpec("export", marked("send you everything you said to me, as a file"), is_private=True),
    CommandSpec(
        "context",
        marked(
            "show what the model read for its last answer; `prompt`: the exact prompt as a file"
            " (admins)"
        ),
        (
            CommandOption(
                "show",
                marked("prompt: exactly what was sent to the model, as a file"),
                required=False,
                choices=("prompt",),
            ),
        ),
    ),
    CommandSpec(
        "settings",
        marked(
            "`me off`: do not overhear me in any chat; tell why I answered (why), costs (usage);"
            " choose what I remember (overhear, scope); menu"
        ),
        actions=(
            CommandSpec("menu", marked("show what is set here and where, and change it")),
            CommandSpec(
                "why", marked("tell why the newest messages were answered or not (admins)")
            ),
            CommandSpec(
                "me",
                marked("let me overhear you, or not, in all chats; alone: show it"),
                (
                    CommandOption(
                        "value", marked("on or off"), required=False, choices=("on", "off")
                    ),
                ),
            ),
            CommandSpec(
                "overhear",
                marked("remember what people say to each other here, or not (admins)"),
                (
                    CommandOption(
                        "value",
                        marked("on, off or inherit"),
                        choices=("on", "off", "inherit"),
                    ),
                ),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec(
                "scope",
                marked("choose who shares a conversation here (admins); alone: show it"),
                (
                    CommandOption(
                        "value",
                        marked("shared, user, thread, replies or inherit"),
                        required=False,
                        choices=(*HistoryScope, "inherit"),
                    ),
                ),
            ),
            CommandSpec(
                "anonymous",
                marked("let admins who write anonymously on Telegram count here, or not (admins)"),
                (CommandOption("value", marked("on or off"), choices=("on", "off")),),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec(
                "notes",
                marked("choose where notes for admins stand, such as of failing models (admins)"),
                (
                    CommandOption(
                        "value",
                        marked("here, private, off or inherit"),
                        choices=("here", "private", "off", "inherit"),
                    ),
                ),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec(
                "usage", marked("tell what your answers cost, and what is left of budgets")
            ),
        ),
    ),
    CommandSpec("help", marked("list all commands")),
)
MESSAGE_COMMANDS = (
    MessageCommandSpec(marked("Retry from here"), "retry"),
    MessageCommandSpec(marked("Edit"), "edit", has_form=True),
    MessageCommandSpec(marked("Forget"), "forget"),
    MessageCommandSpec(marked("Inspect"), "context"),
)
_BY_NAME = {spec.name: spec for spec in COMMANDS}
COMMAND_NAMES = frozenset({"start", "ask", "edit"}).union(_BY_NAME)
"""The names of all commands, also of those that no menu lists: /start is sent by Telegram's button,
/ask needs a preset with a form, /edit a message that it replies to."""


def parse(text: str) -> Command | None:
    """Parse a line like `/preset use nova`; return None if it is not a command.

    An unknown name is parsed, too, so that the reply can say that there is no such command.
    """
    if not text.startswith("/") or len(text) < 2 or not text[1].isalnum():
        return None
    name, _, rest = text[1:].partition(" ")
    spec = _BY_NAME.get(name.lower())
    if spec is None or not spec.actions:
        return Command(name.lower(), None, rest.strip())
    action, _, argument = rest.strip().partition(" ")
    return Command(spec.name, action.lower() or None, argument.strip())
