"""From a preset, a history and a new message to a draft of the prompt: stable parts first.

system -> the preset's own messages -> summary -> history -> what the new message quotes, and the
message. A backend keeps the beginning of a prompt warm, so what changes
with every message comes last. A card's macros and lorebook are seen to at the end (staging.py);
what of it all fits in is chosen afterwards (budget.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bot.chat.incoming import Incoming
from bot.chat.prompt import Image, Message, Prompt, TemplateChoice
from bot.chat.receipt import DroppedItem
from bot.chat.session import Session, Turn
from bot.chat.story import Story
from bot.errors import UserError
from bot.prompting.compose.card import stage
from bot.prompting.compose.card_macros import PromptInputs
from bot.prompting.compose.instructions import build_prompter, instructions, persona_of_card
from bot.prompting.draft.draft import Draft, PromptPart, group_history
from bot.prompting.personas.persona import FilledText
from bot.prompting.presets.messages import PresetMessage
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters.alpaca import AlpacaPrompter
from bot.prompting.prompters.chat import ChatPrompter
from bot.prompting.prompters.form_fields import ask_usage, parse_fields, strip_ask_command
from bot.prompting.speakers.labels import label_speakers, uses_tags
from bot.prompting.text.confusables import strip_hidden_text
from bot.templates import names

T = TypeVar("T")

_MAX_QUOTE_CHARS = 300
_TEMPLATE_KEYS = frozenset({"system_template", "user_template", "assistant_template"}) | {
    "end_template"
}


def compose(
    preset: Preset,
    session: Session,
    incoming: Incoming,
    *,
    company: Mapping[str, str] | None = None,
    answers: Sequence[Turn] = (),
    summary: PromptPart | None = None,
    personas: Mapping[str, str] | None = None,
    stories: Mapping[str, Sequence[Story]] | None = None,
) -> Draft:
    """Make the draft that answers `incoming`.

    `company` names the characters of the room by their presets, `answers` is what others of them
    have said to it already: what another character said is a user's line for this one. `personas`
    says who people are, by id; `stories` go where the persona wants them (instructions.py).

    Raises:
        UserError: the preset's prompter misses a value.
    """
    # A prompter's inputs are values that a person gave, whatever others have said to them.
    answers = () if preset.prompter else answers
    room = _room(preset, session, incoming, answers, company or {}, personas or {})
    # They are no lines of a room either; a name in front would spoil them.
    tagged = not preset.prompter and uses_tags(preset.user_name_in_message, room.turns, preset.name)
    before = len(room.turns) - len(answers)
    sent = (*last_rounds(room.turns[:before], preset.max_rounds), *room.turns[before:])
    *earlier, newest = [_line(turn, room, tagged=tagged) for turn in sent]
    history = group_history(earlier, questions=[turn.speaker is not None for turn in sent[:-1]])
    pinned = [_pinned(one) for one in preset.messages]
    system, told = _opening(room, stories)
    if prompter := build_prompter(preset, told.text):
        instruction, newest = _filled(prompter, newest.content)
        system = _part("system", instruction, needed=True)
        if not isinstance(prompter, ChatPrompter):  # it takes no turns
            pinned, history = [], ()
    draft = Draft(
        base=_frame(room, tagged=tagged),
        system=tuple(system),
        pinned=tuple(pinned),
        summary=summary,
        history=history,
        context=tuple(_part("quote", _quote(incoming, session), priority=1)),
        newest=newest,
        stories=told.stories,
        left_out=_beyond_rounds(len(room.turns) - len(sent), preset),
    )
    return stage(draft, room)


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


def last_rounds(messages: Sequence[T], max_rounds: int) -> Sequence[T]:
    """Keep the last rounds of a conversation: one question with its answer is a round.

    The newest message is the new question, so `n` rounds are `2 * n - 1` messages, whatever their
    roles. Zero and negative numbers keep all (docs/sources.md#rodel).
    """
    return messages[-(2 * max_rounds - 1) :] if max_rounds > 0 else messages


def _room(
    preset: Preset,
    session: Session,
    incoming: Incoming,
    answers: Sequence[Turn],
    company: Mapping[str, str],
    personas: Mapping[str, str],
) -> PromptInputs:
    said = Turn("user", incoming.text, incoming.author, incoming.at)
    turns = tuple(map(_read, (*session.turns, said, *answers)))
    gone = {turn.preset: turn.preset for turn in turns if turn.preset}
    names = {**gone, **company, preset.name: preset.character_name}
    people = label_speakers((turn.speaker for turn in turns if turn.speaker), names)
    return PromptInputs(preset, session, incoming, turns, people, personas)


def _frame(room: PromptInputs, *, tagged: bool) -> Prompt:
    preset, labels = room.preset, room.speakers
    return Prompt(
        messages=(),
        model=preset.model,
        conversation=room.incoming.address.conversation,
        stop=_stops(room) if tagged else preset.stop_sequences,
        parameters=_sampling(preset),
        max_output_tokens=preset.max_output_tokens,
        filtered=preset.filter_chars,
        answers_as=labels.characters[preset.name] if tagged else None,
        speakers=labels.others(preset.name) if tagged else (),
        template=template_of(preset),
        character=preset.character_name,
        asked_by=room.incoming.author.id,
    )


def _opening(
    room: PromptInputs, stories: Mapping[str, Sequence[Story]] | None
) -> tuple[list[PromptPart], FilledText]:
    """What the preset says of itself, as parts and as text."""
    preset, newest = room.preset, room.incoming.text
    if preset.macros and not preset.prompter:
        # A card says by itself how it is to be played; its macros are filled later (staging.py).
        told = persona_of_card(preset, stories, newest=newest)
        system = _part("system", preset.system, needed=True)
        return [*system, *_part("persona", told.text, needed=True)], told
    told = instructions(
        preset,
        stories,
        user_name=room.speakers.people[room.incoming.author.id],
        newest=newest,
    )
    return _part("system", told.text, needed=True), told


def _pinned(one: PresetMessage) -> Message:
    parts: list[str | Image] = [
        part.text if part.type == "text" else Image(part.image_url, part.detail)
        for part in one.content
    ]
    has_images = any(isinstance(part, Image) for part in parts)
    return Message(one.role, one.text, tuple(parts) if has_images else ())


def _part(
    section: str, text: str | None, *, needed: bool = False, priority: int = 0
) -> list[PromptPart]:
    return [PromptPart(section, text, needed=needed, priority=priority)] if text else []


def _filled(prompter: AlpacaPrompter | ChatPrompter, text: str) -> tuple[str, Message]:
    """Let the prompter write the system text and the newest turn from the values given there."""
    values = parse_fields(text, prompter.fields)
    try:
        made = prompter.generate_prompt(values, return_dict=True)["messages"]
    except UserError as error:
        raise UserError(f"{error}. Write:\n{ask_usage(prompter.fields)}") from None
    instruction, said = (str(each["content"]).strip("\n") for each in made)
    # A model answers a user: where every value went into the instruction, that is the question.
    return (instruction, Message("user", said)) if said else ("", Message("user", instruction))


def _quote(incoming: Incoming, session: Session) -> str:
    """What the message replies to, unless it is the line just before."""
    quote = incoming.quote
    if not quote:
        return ""
    # Where several characters answer, the first line of a message says who speaks.
    forms = {quote.strip(), quote.strip().partition("\n")[2].strip()}
    if session.turns and session.turns[-1].text.strip() in forms:
        return ""
    short = quote if len(quote) <= _MAX_QUOTE_CHARS else quote[:_MAX_QUOTE_CHARS] + "…"
    return "\n".join(f"> {part}" for part in strip_hidden_text(short).splitlines())


def _beyond_rounds(turns: int, preset: Preset) -> tuple[DroppedItem, ...]:
    why = f"max_rounds is {preset.max_rounds}"
    return (DroppedItem("history", "", why, turns),) if turns else ()


def _read(turn: Turn) -> Turn:
    """Give what somebody wrote as people see it."""
    seen = strip_hidden_text(turn.text)
    return turn if seen is turn.text else replace(turn, text=seen)


def _line(turn: Turn, room: PromptInputs, *, tagged: bool) -> Message:
    own = room.preset.name
    role = turn.role if turn.preset in {None, own} else "user"
    if not tagged:
        return Message(role, strip_ask_command(turn.text))
    return Message(role, room.speakers.tag_turn(turn, own), name=room.speakers.label_of(turn, own))


def _stops(room: PromptInputs) -> tuple[str, ...]:
    """The preset's own, then the speakers last heard: the model must not speak for them."""
    own = room.preset.name
    last_heard = [room.speakers.label_of(turn, own) for turn in reversed(room.turns)]
    others = room.speakers.others(own)
    labels = [one for one in dict.fromkeys([*last_heard, *others]) if one in others]
    return (*room.preset.stop_sequences, *(f"\n{label}:" for label in labels))


def _sampling(preset: Preset) -> dict[str, object]:
    return {
        key: value
        for key, value in preset.parameters.items()
        if key not in _TEMPLATE_KEYS and value is not None
    }
