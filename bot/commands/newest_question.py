"""Handle /retry and /undo: find the newest question with its answers in the history."""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.attachments import with_kept_files
from bot.chat.incoming import Person, Said, WakeReason
from bot.chat.session import Turn, TurnRange
from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import writes_as_the_group
from bot.commands.request import AskedQuestion, CommandRequest, CommandResult
from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.texts.text import translatable

READS_HISTORY = ("retry", "undo", "forget")
"""The commands that need the newest turns."""
_MAX_QUOTED_CHARS = 60
RETRY_OTHERS = translatable("retry or undo a question that somebody else asked")
RETRY_QUESTION = "retry question"
"""What it is in the audit log that an admin has somebody else's question answered again."""


@frozen_dataclass
class NewestExchange:
    """The newest question and the answers to it."""

    question: Turn
    answers: tuple[Turn, ...]
    turns: TurnRange


class NewestQuestionHandlers:
    """The handlers of /retry and /undo; only who asked may use them, and admins."""

    def __init__(self, admins: AdminCheck) -> None:
        self._admins = admins

    async def handle(self, request: CommandRequest) -> CommandResult:
        """Run one of the two commands.

        Raises:
            UserError: there is no question, or somebody else asked it.
        """
        if request.command.name == "retry":
            return await self._retry(request)
        return await self._undo(request)

    async def _retry(self, request: CommandRequest) -> CommandResult:
        """Answer the newest question again; the old answers leave the history."""
        if request.unanswered is not None:
            await self._check_author(request, request.unanswered.author)
            speakers = pick_speakers(request.active, ())
            question = _asked_again(request, request.unanswered)
            return CommandResult("", repeats=AskedQuestion(question, speakers))
        exchange = _newest_exchange(request)
        await self._check_author(request, exchange.question.speaker)
        asked = replace(
            request.incoming,
            text=exchange.question.text,
            author=_author(exchange, request),
            message_id=exchange.question.message_id,
        )
        newer = exchange.turns.newer + exchange.turns.count
        before = request.recent[: len(request.recent) - newer]
        question = with_kept_files(_asked_again(request, asked), exchange.question, before)
        speakers = pick_speakers(request.active, exchange.answers)
        return CommandResult("", removes=exchange.turns, repeats=AskedQuestion(question, speakers))

    async def _undo(self, request: CommandRequest) -> CommandResult:
        """Take the newest question and its answers out of the history."""
        if request.unanswered is not None:
            await self._check_removal(request, request.unanswered.author)
            return CommandResult(
                translatable(
                    "Removed from the conversation: “{text}”.",
                    text=_quoted(request.unanswered.text),
                ),
                removes=TurnRange(0, 0),
                changes_channel=True,
            )
        exchange = _newest_exchange(request)
        await self._check_removal(request, exchange.question.speaker)
        text = _quoted(exchange.question.text)
        return CommandResult(
            translatable("Removed from the conversation: “{text}” and its answer.", text=text)
            if exchange.answers
            else translatable("Removed from the conversation: “{text}”.", text=text),
            removes=exchange.turns,
            changes_channel=True,
        )

    async def _check_author(self, request: CommandRequest, author: Person | None) -> None:
        if author is None or author.id != request.incoming.author.id:
            await self._admins.require(request.incoming, RETRY_OTHERS, audited_as=RETRY_QUESTION)

    async def _check_removal(self, request: CommandRequest, author: Person | None) -> None:
        """Refuse to delete others' questions, and to who writes as the group any at all.

        Which of the anonymous admins asked is not known, and what is removed does not come back.
        """
        is_own = author is not None and author.id == request.incoming.author.id
        if not is_own or writes_as_the_group(request.incoming):
            await self._admins.require(
                request.incoming, RETRY_OTHERS, needs_name=True, audited_as="undo question"
            )


def find_exchange(turns: Sequence[Turn], by: str) -> NewestExchange | None:
    """Find the newest question in turns that are oldest first; None if there is none.

    That is what the person `by` said last if nobody has answered it, else the message before the
    newest answers. Lines that were only observed after those are left alone.
    """
    end = len(turns)
    if turns and turns[-1].speaker is not None and turns[-1].speaker.id == by:
        return NewestExchange(turns[-1], (), TurnRange(0, 1))
    while end and turns[end - 1].role == "user":
        end -= 1
    start = end
    while start and turns[start - 1].role != "user":
        start -= 1
    if start == 0:  # nothing but a greeting
        return None
    newer = len(turns) - end
    return NewestExchange(
        turns[start - 1], tuple(turns[start:end]), TurnRange(newer, end - start + 1)
    )


def _newest_exchange(request: CommandRequest) -> NewestExchange:
    exchange = find_exchange(request.recent, request.incoming.author.id)
    if exchange is None:
        raise UserError(translatable("There is no question in this conversation yet."))
    return exchange


def _author(exchange: NewestExchange, request: CommandRequest) -> Person:
    return exchange.question.speaker or request.incoming.author


def _asked_again(request: CommandRequest, question: Said) -> Said:
    """Return a question as if it came now, in the place of the command."""
    return replace(
        request.incoming,
        text=question.text,
        author=question.author,
        asked_again_by=request.incoming.author.id,
        message_id=question.message_id,
        quote=question.quote,
        attachments=question.attachments,
        earlier_files=question.earlier_files,
        repeated_files=question.repeated_files,
        wake=WakeReason.DM,
    )


def pick_speakers(active: ActiveCharacters, answers: Sequence[Turn]) -> tuple[ActivePreset, ...]:
    """Return who answered before and is still active; else the first character."""
    names = dict.fromkeys(turn.preset for turn in answers if turn.preset in active.names)
    return active.pick([name for name in names if name]) or (active.first,)


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_QUOTED_CHARS else f"{line[:_MAX_QUOTED_CHARS].rstrip()} …"
