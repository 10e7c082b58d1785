"""Work out what a command sends: a reply to its author, and what everybody is told.

A change that is answered to one person alone, such as a choice from a menu on Discord, is told to
everybody by a message of its own that names who made it; everybody reads other replies anyway.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from bot.chat.incoming import Address, Said
from bot.chat.outgoing import Face, MessageContent, OutgoingPart
from bot.chat.session import HistoryChange, InboxMessage, Turn, TurnResult
from bot.commands.request import CommandRequest, CommandResult
from bot.frozen_dataclass import frozen_dataclass
from bot.replying.answer_buttons import forget_buttons
from bot.replying.live_replies import LiveReplies
from bot.routing.preset_resolver import PresetResolver
from bot.texts.text import Text, language_of, translatable, translate
from bot.turn.changes.pressed_buttons import find_speaker
from bot.turn.gathering import user_turn

_ANSWERED_AGAIN = translatable("The question is answered again below.")


@frozen_dataclass
class Greeting:
    """What a character says when a conversation begins; without a turn: nothing."""

    turn: Turn | None = None
    address: Address | None = None
    line: str = ""
    face: Face | None = None

    @property
    def is_spoken(self) -> bool:
        """Whether readers see that the character says it, not the bot."""
        return bool(self.line) or self.face is not None


@frozen_dataclass
class CommandReplies:
    """Turns the result of a command into messages and changes of the history."""

    replies: LiveReplies
    resolver: PresetResolver

    async def compose(
        self,
        message: InboxMessage,
        request: CommandRequest,
        result: CommandResult,
        menu: CommandResult | None = None,
    ) -> TurnResult:
        """Return what is sent and stored.

        Args:
            message: the command, or the press that stands for one.
            request: the command.
            result: what it has brought about.
            menu: what the author reads instead of its text, in place of the menu that was used.
        """
        said = request.incoming
        is_alone = message.incoming.interaction is not None and not said.has_public_response
        greeting = await self.greet(said.address, said.scopes, result, request.now)
        is_apart = is_alone or greeting.is_spoken
        own = result.text_before_greeting if result.greeting and is_apart else result.text
        shown = self._own_parts(message, said, menu or replace(result, text=own))
        outgoing = list(shown.outgoing)
        if is_alone and result.changes_channel and not said.is_private:
            told = translate(_change(result, said), language_of(said.locale))
            outgoing += self.replies.final_parts(said.address, told, len(outgoing))
        spoken = TurnResult([greeting.turn] if greeting.turn else [])
        if is_apart:
            spoken = self.say(message, greeting, len(outgoing))
        return replace(
            shown,
            turns=spoken.turns,
            outgoing=[*outgoing, *spoken.outgoing],
            new_session=result.new_session,
            removes=result.removes,
            change=HistoryChange(deleted=result.deletes) if result.deletes else None,
        )

    async def greet(
        self, address: Address, scopes: Sequence[str], result: CommandResult, now: datetime
    ) -> Greeting:
        """Return how the character says the greeting of a result, if it has one."""
        if not result.greeting:
            return Greeting()
        turn = Turn("assistant", result.greeting, None, now, result.greeter)
        active = await self.resolver.resolve(scopes)  # the command may have changed who answers
        line, face = find_speaker(self.resolver, self.replies, turn, address, active)
        return Greeting(turn, address, line, face)

    def say(self, message: InboxMessage, greeting: Greeting, first_part: int) -> TurnResult:
        """Let a character greet everybody, in messages of its own from this part on."""
        if greeting.turn is None or greeting.address is None:
            return TurnResult()
        text = greeting.line + greeting.turn.text
        spoken = self.replies.final_parts(greeting.address, text, first_part, greeting.face)
        names = tuple(message.part_name(one.part) for one in spoken)
        return TurnResult([replace(greeting.turn, sent_as=names)], spoken)

    def with_response(
        self, message: InboxMessage, result: TurnResult, text: Text = _ANSWERED_AGAIN
    ) -> TurnResult:
        """Add a response for the author of a native command whose result everybody sees."""
        if not has_private_response(message):
            return result
        following = max((one.part + 1 for one in result.outgoing), default=result.next_part)
        shown = translate(text, language_of(message.incoming.locale))
        response = OutgoingPart(following, MessageContent(shown), is_response=True)
        return replace(result, outgoing=(*result.outgoing, response))

    def _own_parts(self, message: InboxMessage, said: Said, shown: CommandResult) -> TurnResult:
        """Return the reply to the author, with its menus; who may use them is kept with it."""
        text = translate(shown.text, language_of(said.locale))
        outgoing: Sequence[OutgoingPart] = self.replies.final_parts(said.address, text)
        if shown.file is not None:
            outgoing = (OutgoingPart(0, MessageContent(text), file=shown.file),)
        names = tuple(message.part_name(one.part) for one in outgoing)
        buttons, has_menu = shown.buttons, bool(shown.menus)
        if shown.asks_to_forget:
            buttons = forget_buttons(names[-1], said.locale)
        outgoing = self.replies.with_buttons(said.address, outgoing, buttons, shown.menus)
        if shown.in_place_of:
            first, *others = outgoing
            outgoing = (replace(first, is_response=True), *others)
            return TurnResult(outgoing=outgoing, in_place_of=shown.in_place_of)
        asked = (
            [replace(user_turn(said), sent_as=names)] if has_menu or shown.asks_to_forget else []
        )
        return TurnResult(outgoing=outgoing, unanswered=asked)


def has_private_response(message: InboxMessage) -> bool:
    """Return whether the author of a native command waits for a response of its own."""
    incoming = message.incoming
    return isinstance(incoming, Said) and incoming.interaction is not None


def _change(result: CommandResult, said: Said) -> Text:
    """Say who changed what."""
    change = result.text if result.greeting is None else result.text_before_greeting
    name = " ".join(said.author.name.split())
    return translatable("Changed by {name}: {change}", name=name, change=change)
