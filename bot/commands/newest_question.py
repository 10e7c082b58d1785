"""Handle /retry and /undo: find the newest question with its answers in the history."""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.attachments import with_kept_files
from bot.chat.command import parse
from bot.chat.incoming import Person, WakeReason
from bot.chat.session import StoredTurn, Turn, TurnRange
from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import writes_as_the_group
from bot.commands.registry import command
from bot.commands.request import AskedQuestion, CommandRequest, CommandResult
from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.texts.text import marked, translatable

READS_HISTORY = ("retry", "undo", "forget", "start")
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
    turns: TurnRange | None
    """Where they are in the history; None: the answer failed, so that they are not."""
    earlier: tuple[Turn, ...] = ()
    """What was gathered with a question whose answer failed."""
    failed: tuple[int, ...] = ()
    """The ids of the turns that are kept of such a question."""


class NewestQuestionHandlers:
    """The handlers of /retry and /undo; only who asked may use them, and admins."""

    def __init__(self, admins: AdminCheck) -> None:
        self._admins = admins

    @command("retry", marked("answer the newest question again"))
    async def _retry(self, request: CommandRequest) -> CommandResult:
        """Answer the newest question again; the old answers leave the history."""
        exchange = _newest_exchange(request)
        question, before = exchange.question, exchange.earlier
        await self._check_author(request, question.speaker)
        if exchange.turns is not None:
            newer = exchange.turns.newer + exchange.turns.count
            before = tuple(request.recent[: len(request.recent) - newer])
        asked = replace(
            request.incoming,
            text=question.text,
            author=question.speaker or request.incoming.author,
            asked_again_by=request.incoming.author.id,
            message_id=question.message_id,
            wake=WakeReason.DM,
        )
        repeats = AskedQuestion(
            with_kept_files(asked, question, before),
            pick_speakers(request.active, exchange.answers),
            earlier=exchange.earlier,
        )
        return CommandResult("", removes=exchange.turns, repeats=repeats)

    @command("undo", marked("remove the newest question and its answer from the conversation"))
    async def _undo(self, request: CommandRequest) -> CommandResult:
        """Take the newest question and its answers out of the history."""
        exchange = _newest_exchange(request)
        await self._check_removal(request, exchange.question.speaker)
        text = _quoted(exchange.question.text)
        return CommandResult(
            translatable("Removed from the conversation: “{text}” and its answer.", text=text)
            if exchange.answers
            else translatable("Removed from the conversation: “{text}”.", text=text),
            removes=exchange.turns,
            deletes=exchange.failed,
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


def find_exchange(request: CommandRequest) -> NewestExchange | None:
    """Find the newest question; None if there is none.

    That is the one whose answer failed, or what the author of the command said last if nobody has
    answered it, else the message before the newest answers. Lines that were only observed after
    those are left alone.
    """
    turns, by = request.recent, request.incoming.author.id
    failed = _find_failed(request.failed, turns)
    if failed is not None:
        return failed
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


def _find_failed(kept: Sequence[StoredTurn], recent: Sequence[Turn]) -> NewestExchange | None:
    """Find the newest question whose answer failed, in what is kept of those, newest first."""
    known = {one.message_id for one in recent if one.message_id}  # another answer to it failed
    questions = (
        one
        for one in kept
        if one.turn.message_id not in known and parse(one.turn.text) is None  # no menu
    )
    newest = next(questions, None)
    if newest is None:
        return None
    question = newest.turn
    gathered = [one for one in kept if one.turn.sent_as == question.sent_as]
    again = [one for one in kept if _name(one.turn) == _name(question)]  # it has failed repeatedly
    earlier = tuple(one.turn for one in reversed(gathered) if one is not newest)
    ids = {one.id for one in (*gathered, *again)}
    return NewestExchange(question, (), None, earlier, tuple(sorted(ids)))


def _name(question: Turn) -> object:
    """Return what tells a question from others: a native command has no message."""
    return question.message_id or (question.text, question.speaker)


def _newest_exchange(request: CommandRequest) -> NewestExchange:
    exchange = find_exchange(request)
    if exchange is None:
        raise UserError(translatable("There is no question in this conversation yet."))
    return exchange


def pick_speakers(active: ActiveCharacters, answers: Sequence[Turn]) -> tuple[ActivePreset, ...]:
    """Return who answered before and is still active; else the first character."""
    names = dict.fromkeys(turn.preset for turn in answers if turn.preset in active.names)
    return active.pick([name for name in names if name]) or (active.first,)


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_QUOTED_CHARS else f"{line[:_MAX_QUOTED_CHARS].rstrip()} …"
