"""What people can command, and how a line of text becomes a command."""

from bot.chat.command import Command, CommandOption, CommandSpec

COMMANDS = (
    CommandSpec(
        "preset",
        "who answers here: use, add, remove, list, show, who, reset",
        actions=(
            CommandSpec(
                "use",
                "let a preset answer in this channel (admins)",
                (CommandOption("name", "the preset", completes=True),),
            ),
            CommandSpec(
                "add",
                "let another character answer here as well (admins)",
                (CommandOption("name", "the preset", completes=True),),
            ),
            CommandSpec(
                "remove",
                "let the others go on without it (admins)",
                (CommandOption("name", "the preset", completes=True),),
            ),
            CommandSpec("list", "the presets there are, and who of them is here"),
            CommandSpec(
                "who",
                "who would answer this, and why",
                (CommandOption("text", "what somebody might say"),),
            ),
            CommandSpec(
                "show",
                "what a preset says; without a name: the one used here",
                (CommandOption("name", "the preset", required=False, completes=True),),
            ),
            CommandSpec("reset", "go back to what the channel had before (admins)"),
        ),
    ),
    CommandSpec(
        "new",
        "begin a new conversation; the old one is kept",
        (CommandOption("greeting", "the number of the greeting to begin with", required=False),),
    ),
    CommandSpec(
        "me",
        "who you are here; begin with `everywhere` to mean all places, or say `clear`",
        (CommandOption("text", "I am a tall knight", required=False),),
    ),
    CommandSpec("forget", "delete for good what was said here (in groups: admins)"),
    CommandSpec(
        "context",
        "what the last answer here was made of; with `prompt`: the exact prompt (admins)",
        (
            CommandOption(
                "show",
                "prompt: exactly what the model was sent, as a file",
                required=False,
                choices=("prompt",),
            ),
        ),
    ),
    CommandSpec("help", "what I can do"),
)
_BY_NAME = {spec.name: spec for spec in COMMANDS}


def parse(text: str) -> Command | None:
    """Read `/preset use nova`; None for what is no command at all.

    An unknown name is a command too: somebody meant one, and the answer can say so.
    """
    if not text.startswith("/") or len(text) < 2 or not text[1].isalnum():
        return None
    name, _, rest = text[1:].partition(" ")
    spec = _BY_NAME.get(name.lower())
    if spec is None or not spec.actions:
        return Command(name.lower(), None, rest.strip())
    action, _, argument = rest.strip().partition(" ")
    return Command(spec.name, action.lower() or None, argument.strip())
