"""Work out what a command sends: a reply to its author, and what everybody is told.

On a platform whose native commands and presses are answered to one person alone, everybody is told
by a message of its own who changed what; elsewhere the reply is read by everybody anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bot.chat.incoming import Said
from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import InboxMessage, Turn, TurnResult
from bot.commands.request import CommandRequest, CommandResult
from bot.replying.answer_buttons import forget_buttons
from bot.replying.live_replies import LiveReplies
from bot.texts.text import Text, language_of, translatable, translate
from bot.turn.gathering import user_turn

_ANSWERED_AGAIN = translatable("The question is answered again below.")


@dataclass(frozen=True, slots=True)
class CommandReplies:
    """Turns the result of a command into messages and changes of the history."""

    replies: LiveReplies

    def compose(
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
        said, greeting = request.incoming, result.greeting
        language = language_of(said.locale)
        is_alone = message.incoming.interaction is not None
        own = result.text_before_greeting if is_alone and greeting else result.text
        shown = self._own_parts(message, said, menu or replace(result, text=own))
        outgoing = list(shown.outgoing)
        for text in _texts_for_everybody(result, said) if is_alone else ():
            told = translate(text, language)
            outgoing += self.replies.final_parts(said.address, told, len(outgoing))
        turns = [Turn("assistant", greeting, None, request.now, result.greeter)] if greeting else []
        return replace(
            shown,
            turns=turns,
            outgoing=outgoing,
            new_session=result.new_session,
            removes=result.removes,
        )

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


def _texts_for_everybody(result: CommandResult, said: Said) -> Iterator[str]:
    """Yield who changed what, unless nobody else is there, and the greeting."""
    if result.changes_channel and not said.is_private:
        change = result.text if result.greeting is None else result.text_before_greeting
        name = " ".join(said.author.name.split())
        yield translatable("Changed by {name}: {change}", name=name, change=change)
    if result.greeting:
        yield result.greeting
