"""From a preset, a history and a new message to the prompt: stable parts first.

system -> the preset's own messages -> history in budget -> the new message with what it quotes.
A backend keeps the beginning of a prompt warm, so what changes with every message comes last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bot.chat.incoming import Incoming
from bot.chat.prompt import Message, Prompt, TemplateChoice
from bot.chat.session import Session, Turn
from bot.errors import UserError
from bot.prompting.budget import Count, costs, fit
from bot.prompting.naming import labels, tag, tagging
from bot.prompting.preset import Preset
from bot.prompting.prompters import AlpacaPrompter, ChatPrompter, prompter_of
from bot.prompting.rounds import rounds
from bot.prompting.slots import asked, how_to_ask, read_slots
from bot.templates import names

_MAX_QUOTE_CHARS = 300
_TEMPLATE_KEYS = frozenset({"system_template", "user_template", "assistant_template"}) | {
    "end_template"
}


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt, and how much of the history did not fit in."""

    prompt: Prompt
    dropped_turns: int


def compose(
    preset: Preset, session: Session, incoming: Incoming, *, bot_name: str, count: Count
) -> Composed:
    """Make the prompt that answers `incoming`.

    Raises:
        UserError: the message alone is longer than the preset's `max_input_tokens`.
    """
    newest = Turn("user", incoming.text, incoming.author, incoming.at)
    name = preset.role_name or bot_name
    turns = (*session.turns, newest)
    known = labels((turn.speaker for turn in turns if turn.speaker), name)
    # A prompter's inputs are values, not lines of a room; a name in front would spoil them.
    tagged = preset.prompter is None and tagging(preset.user_name_in_message, turns)
    lines = [
        Message(turn.role, tag(turn, known, name) if tagged else asked(turn.text))
        for turn in rounds(turns, preset.max_rounds)
    ]
    fixed = _fixed(preset)
    if prompter := prompter_of(preset):
        fixed, lines = _filled(prompter, preset, lines)
    lines[-1] = _with_quote(lines[-1], incoming, session)
    history = _history(preset, fixed, lines, count)
    return Composed(
        Prompt(
            messages=(*fixed, *history, lines[-1]),
            model=preset.model,
            conversation=incoming.address.conversation,
            stop=_stops(preset, turns, known) if tagged else preset.stop_sequences,
            parameters=_sampling(preset),
            max_output_tokens=preset.max_output_tokens,
            filtered=preset.filter_chars,
            answers_as=name if tagged else None,
            template=template_of(preset),
            character=name,
            asked_by=incoming.author.id,
        ),
        dropped_turns=len(session.turns) - len(history),
    )


def template_of(preset: Preset) -> TemplateChoice:
    """What writes this preset's prompts: its `template`, its string templates, or the model's."""
    trim = preset.trim_inputs
    match preset.template:
        case None:
            parameters = preset.parameters.items()
            given = {
                key: str(value)
                for key, value in parameters
                if key in _TEMPLATE_KEYS and value is not None
            }
            return TemplateChoice(strings=given or None, trim_inputs=trim)
        case "model":
            return TemplateChoice(trim_inputs=trim)
        case str() as word if word in names():
            return TemplateChoice(named=word, trim_inputs=trim)
        case source:
            return TemplateChoice(source=source, trim_inputs=trim)


def _fixed(preset: Preset) -> list[Message]:
    system = preset.system_text
    return [Message("system", system), *_pinned(preset)] if system else _pinned(preset)


def _pinned(preset: Preset) -> list[Message]:
    return [Message(message.role, message.text) for message in preset.messages]


def _filled(
    prompter: AlpacaPrompter | ChatPrompter, preset: Preset, lines: Sequence[Message]
) -> tuple[list[Message], list[Message]]:
    """Let the prompter write the system text and the newest turn from the values given there."""
    values = read_slots(lines[-1].content, prompter.slots)
    try:
        made = prompter.generate_prompt(values, return_dict=True)["messages"]
    except UserError as error:
        raise UserError(f"{error}. Write:\n{how_to_ask(prompter.slots)}") from None
    instruction, said = (str(each["content"]).strip("\n") for each in made)
    takes_turns = isinstance(prompter, ChatPrompter)
    pinned, earlier = (_pinned(preset), lines[:-1]) if takes_turns else ([], ())
    if instruction and said:
        pinned.insert(0, Message("system", instruction))
    # A model answers a user: where every value went into the instruction, that is the question.
    return pinned, [*earlier, Message("user", said or instruction)]


def _history(
    preset: Preset, fixed: Sequence[Message], lines: Sequence[Message], count: Count
) -> Sequence[Message]:
    if preset.max_input_tokens is None:
        return lines[:-1]
    newest = costs(lines[-1:], count)[0]
    left = preset.max_input_tokens - sum(costs(fixed, count)) - newest
    if left < 0:
        raise UserError(
            f"That message is too long for me: about {newest} tokens, and with my instructions "
            f"at most {preset.max_input_tokens} fit. Please send it in smaller parts."
        )
    return fit(lines[:-1], left, count)


def _with_quote(line: Message, incoming: Incoming, session: Session) -> Message:
    """Put what the message replies to in front of it, unless it is the line just before."""
    quote = incoming.quote
    if not quote or (session.turns and session.turns[-1].text.strip() == quote.strip()):
        return line
    short = quote if len(quote) <= _MAX_QUOTE_CHARS else quote[:_MAX_QUOTE_CHARS] + "…"
    quoted = "\n".join(f"> {part}" for part in short.splitlines())
    return Message(line.role, f"{quoted}\n\n{line.content}")


def _stops(preset: Preset, turns: Sequence[Turn], known: dict[str, str]) -> tuple[str, ...]:
    """The preset's own, then the speakers last heard: the model must not speak for them."""
    speakers = dict.fromkeys(turn.speaker.id for turn in reversed(turns) if turn.speaker)
    lines = [f"\n{known[one]}:" for one in speakers]
    return (*preset.stop_sequences, *lines)


def _sampling(preset: Preset) -> dict[str, object]:
    return {
        key: value
        for key, value in preset.parameters.items()
        if key not in _TEMPLATE_KEYS and value is not None
    }
