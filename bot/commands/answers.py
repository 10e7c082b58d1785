"""Commands and buttons that act on an answer: retry, continue, stop, delete, undo."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from bot.chat.command import (
    FORM_ACTIONS,
    MENU_ACTIONS,
    ButtonAction,
    ButtonData,
    parse_button,
    parse_command,
)
from bot.chat.incoming import ButtonPress, ChatJoin, IncomingMessage, MessageEdit
from bot.chat.session import Claim, Exchange, StoredTurn, Turn, TurnRange, build_repeated_question
from bot.commands.authority import (
    AdminCheck,
    is_group_author,
    unknown_admin_notice,
    writes_as_group,
)
from bot.commands.request import CommandRequest, CommandResult, OpenQuestion, command
from bot.errors import StoreError, UserError
from bot.routing.decide import AccessRules, cut_to_first_chars
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.storage.conversations import Conversations
from bot.storage.inbox import SqlInbox
from bot.texts.text import Text, marked, supported_language, translatable, translate
from bot.value_class import value_class

COMMANDS_THAT_READ_HISTORY = ("retry", "undo", "forget", "start")
"""The commands whose handlers read the newest turns of the history."""
_MAX_QUOTED_CHARS = 60
RETRY_ACTION = translatable("retry or undo a question that somebody else asked")
RETRY_AUDIT_NAME = "retry question"
"""The name in the audit log for a retry of somebody else's question."""


@value_class
class NewestExchange:
    """The newest question and the answers to it."""

    question: Turn
    answers: tuple[Turn, ...]
    turn_range: TurnRange | None
    """The range of question and answers in the history; None: the answer failed, so no range."""
    earlier_turns: tuple[Turn, ...] = ()
    """If the answer failed: the earlier messages that it would also have covered."""
    failed_turn_ids: tuple[int, ...] = ()
    """If the answer failed: the ids of all turns stored for the question and `earlier_turns`."""


@dataclass(eq=False)
class NewestQuestionHandlers:
    """Handles /retry and /undo for the author of the question and for admins."""

    admins: AdminCheck

    @command("retry", marked("answer the newest question again"))
    async def _retry(self, request: CommandRequest) -> CommandResult:
        exchange, message = _require_newest_exchange(request), request.incoming
        question, earlier_turns = exchange.question, exchange.earlier_turns
        if not question.is_from(message.author):
            await self.admins.require_admin(message, RETRY_ACTION, audit_name=RETRY_AUDIT_NAME)
        if exchange.turn_range is not None:
            dropped_count = exchange.turn_range.newer_turn_count + exchange.turn_range.count
            earlier_turns = tuple(request.recent_turns[: len(request.recent_turns) - dropped_count])
        new_message = build_repeated_question(message, question, earlier_turns)
        speakers = pick_speakers(request.active, exchange.answers)
        open_question = OpenQuestion(new_message, speakers, earlier_turns=exchange.earlier_turns)
        return CommandResult("", removed_range=exchange.turn_range, question=open_question)

    @command("undo", marked("remove the newest question and its answer from the conversation"))
    async def _undo(self, request: CommandRequest) -> CommandResult:
        exchange, message = _require_newest_exchange(request), request.incoming
        is_own_question = exchange.question.is_from(message.author)
        if not is_own_question or writes_as_group(message):  # unknown which admin asked it
            await self.admins.require_admin(
                message, RETRY_ACTION, refuses_anonymous=True, audit_name="undo question"
            )
        quoted_text = cut_to_first_chars(exchange.question.text, _MAX_QUOTED_CHARS)
        text = translatable("Removed from the conversation: “{text}”.", text=quoted_text)
        if exchange.answers:
            text = translatable(
                "Removed from the conversation: “{text}” and its answer.", text=quoted_text
            )
        turn_range, ids = exchange.turn_range, exchange.failed_turn_ids
        return CommandResult(text, removed_range=turn_range, deleted_ids=ids, changes_channel=True)


def find_newest_exchange(request: CommandRequest) -> NewestExchange | None:
    """Return the newest question with its answers, or None if there is no question.

    A question whose answer failed takes precedence; next, a message of the command's author that
    has no answer yet; last, the question before the newest answers.
    """
    turns, author_id = request.recent_turns, request.incoming.author.id
    failed_exchange = _find_newest_failed_exchange(request.failed_questions, turns)
    if failed_exchange is not None:
        return failed_exchange
    end = len(turns)
    if turns and turns[-1].speaker is not None and turns[-1].speaker.id == author_id:
        return NewestExchange(turns[-1], (), TurnRange(0, 1))
    while end and turns[end - 1].role == "user":
        end -= 1
    start = end
    while start and (turns[start - 1].role != "user" or turns[start - 1].is_observed):
        start -= 1
    if start == 0:  # nothing but a greeting
        return None
    turn_range = TurnRange(len(turns) - end, end - start + 1)
    answers = tuple(one for one in turns[start:end] if one.role != "user")
    return NewestExchange(turns[start - 1], answers, turn_range)


def _find_newest_failed_exchange(
    turns: Sequence[StoredTurn], recent_turns: Sequence[Turn]
) -> NewestExchange | None:
    answered_ids = {one.message_id for one in recent_turns if one.message_id}
    unanswered_turns = (one for one in turns if one.turn.message_id not in answered_ids)
    # Skip commands: their replies may be menus.
    turn = next((one for one in unanswered_turns if parse_command(one.turn.text) is None), None)
    if turn is None:
        return None
    question = turn.turn
    gathered_turns = [one for one in turns if one.turn.part_names == question.part_names]
    question_key = _question_key(question)
    # A question that was asked again may have failed again.
    repeated_turns = [one for one in turns if _question_key(one.turn) == question_key]
    earlier_turns = tuple(one.turn for one in reversed(gathered_turns) if one is not turn)
    turn_ids = {one.id for one in (*gathered_turns, *repeated_turns)}
    return NewestExchange(question, (), None, earlier_turns, tuple(sorted(turn_ids)))


def _question_key(question: Turn) -> object:
    """Return a question's message id, or its text and speaker if a native command has no id."""
    return question.message_id or (question.text, question.speaker)


def _require_newest_exchange(request: CommandRequest) -> NewestExchange:
    exchange = find_newest_exchange(request)
    if exchange is None:
        raise UserError(translatable("There is no question in this conversation yet."))
    return exchange


def pick_speakers(active: ActiveCharacters, answers: Sequence[Turn]) -> tuple[ActivePreset, ...]:
    """Return the still active characters that gave the answers, or else the first active one."""
    names = dict.fromkeys(turn.preset for turn in answers if turn.preset in active.names)
    return active.select_members([name for name in names if name]) or (active.first,)


BUTTON_GONE_NOTICE = translatable(
    "This button no longer works: its answer was deleted or replaced."
)
CONVERSATION_MOVED_ON_NOTICE = translatable(
    "The conversation has moved on: this button works only under the newest answer."
)
NOT_AUTHOR_NOTICE = translatable(
    "Only the person who asked the question, or an admin, can use this button."
)
NOT_REMEMBERED_NOTICE = translatable("I don't remember that message.")
_CHANGE_ANSWER_ACTION = translatable("change the answer to somebody else's question")
_SEE_CONTEXT_ACTION = translatable("see the context of the answer to somebody else's question")
_PRESS_OTHERS_BUTTONS_ACTION = translatable("use the buttons of somebody else's question")
_COMMANDS_WITH_BUTTONS = frozenset({"preset", "settings", "forget", "new", "start", "memory"})
"""The commands whose replies have buttons of their own."""
COMMAND_HINTS = {
    ButtonAction.ENTER_NAME: translatable("Write /preset use and the name of the preset."),
    ButtonAction.ENTER_BIO: translatable(
        "Write /me followed by a description of yourself, or /me clear to delete it."
    ),
}
"""Hints that say what to type on platforms without forms."""
_CONFIRMATION_EXPIRED_NOTICE = translatable(
    "This button expired after 15 minutes, so nothing was deleted. Send /forget me again."
)
NO_ACCESS_NOTICE = translatable("You may not use me here. /forget me and /export still work.")
_ASKER_ONLY_NOTICE = translatable("Only the person who asked can use this button.")
_CONFIRMATION_LIFETIME = timedelta(minutes=15)
_MAX_EARLIER_TURNS = 400
_AUTHOR_ONLY_ACTIONS = MENU_ACTIONS | {
    ButtonAction.FORGET,
    ButtonAction.KEEP_DATA,
    ButtonAction.CONFIRM_AGE,
}
_NEWEST_ANSWER_ACTIONS = frozenset({ButtonAction.RETRY, ButtonAction.CONTINUE})
_ALWAYS_ALLOWED_ACTIONS = {ButtonAction.DELETE, ButtonAction.FORGET, ButtonAction.KEEP_DATA}
_AUDIT_NAMES = {
    ButtonAction.RETRY: RETRY_AUDIT_NAME,
    ButtonAction.CONTINUE: "continue answer",
    ButtonAction.VERSION: "choose version",
    ButtonAction.DELETE: "delete answer",
}
"""Names in the audit log for presses of buttons under other people's answers."""


@dataclass(eq=False)
class AnswerButtons:
    """Finds a button's answer, and checks that whoever presses it is the asker or an admin."""

    conversations: Conversations
    inbox: SqlInbox
    admins: AdminCheck
    with_history_address: Callable[[ButtonPress], Awaitable[ButtonPress]]
    """Returns a press with the address of the history that the press belongs to."""
    access_rules: AccessRules
    find_press_refusal: Callable[[ButtonPress], Awaitable[Text | None]] | None = None
    """Counts a press, and returns why it is refused if there were too many; None: no limit."""

    async def find_refusal_reason(self, press: ButtonPress) -> str | None:
        """Return why a press should be refused, before it is stored, or None to accept it."""
        button = parse_button(press)
        try:
            reason: str | None = (
                await self.find_press_refusal(press) if self.find_press_refusal else None
            )
            if reason is None and button is not None:
                if button.action is ButtonAction.STOP:
                    await self._check_stop_press(press, button)
                else:
                    await self.find_exchange(press, button)
                if button.action in FORM_ACTIONS and not press.values:  # the platform has no forms
                    reason = COMMAND_HINTS[button.action]
        except UserError as error:
            reason = error.text
        except StoreError:  # the press is checked again before it takes effect
            return None
        return None if reason is None else translate(reason, supported_language(press.locale))

    async def find_exchange(self, press: ButtonPress, button: ButtonData) -> Exchange:
        """Return the exchange that a button belongs to; raise `UserError` to refuse the press."""
        needs_access = button.action not in _ALWAYS_ALLOWED_ACTIONS
        if needs_access and await self.access_rules.find_refusal(press) is not None:
            raise UserError(NO_ACCESS_NOTICE)
        press = await self.with_history_address(press)
        exchange = await self.conversations.load_exchange_by_part(
            press.address.conversation, button.part_name, _MAX_EARLIER_TURNS
        )
        if exchange is None:
            raise UserError(BUTTON_GONE_NOTICE)
        author = exchange.question.turn.speaker
        if button.action in _AUTHOR_ONLY_ACTIONS and author is not None:
            # People who write as the group itself press buttons under their own names.
            is_anonymous = is_group_author(author, press.address) and not press.is_private
            if is_anonymous and button.action in MENU_ACTIONS:
                await self._require_asker_or_admin(press, ())
            elif author.id != press.author.id:
                raise UserError(_ASKER_ONLY_NOTICE)
        else:
            await self._require_asker_or_admin(press, {author.id} if author is not None else set())
        shown_at = press.shown_at or exchange.question.turn.at
        if button.action is ButtonAction.FORGET and press.at - shown_at > _CONFIRMATION_LIFETIME:
            raise UserError(_CONFIRMATION_EXPIRED_NOTICE)
        if (
            button.action in _NEWEST_ANSWER_ACTIONS
            and exchange.answers
            and not exchange.is_newest_exchange
        ):
            raise UserError(CONVERSATION_MOVED_ON_NOTICE)
        return exchange

    async def find_changeable_exchange(self, press: ButtonPress, button: ButtonData) -> Exchange:
        """Return a button's exchange, and audit admins who change other people's answers."""
        exchange = await self.find_exchange(press, button)
        audit_name = _AUDIT_NAMES.get(button.action)
        if audit_name is not None and not exchange.question.turn.is_from(press.author):
            await self.admins.record_admin_action(press, audit_name)
        return exchange

    async def find_quoted_exchange(self, message: IncomingMessage) -> tuple[StoredTurn, Exchange]:
        """Return the quoted turn with its question and answers; raises `UserError` if unknown."""
        conversation, exchange = message.address.conversation, None
        read_only_claim = Claim(conversation, 0, "")  # this claim can only read
        message_id = (message.quote.message_id if message.quote is not None else None) or ""
        conversations, max_turns = self.conversations, _MAX_EARLIER_TURNS
        turns = await conversations.find_turns(read_only_claim, [message_id])
        turn = next((one for one in turns if not _has_own_buttons(one.turn)), None)
        if turn is not None and turn.turn.role == "user" and not turn.turn.part_names:
            exchange = await conversations.load_exchange(read_only_claim, message_id, max_turns)
        elif turn is not None:
            part_name = turn.turn.part_names[-1]
            exchange = await conversations.load_exchange_by_part(conversation, part_name, max_turns)
        if turn is None or exchange is None:
            raise UserError(NOT_REMEMBERED_NOTICE)
        return turn, exchange

    async def find_text_to_edit(self, message: IncomingMessage) -> str:
        """Return the quoted message's text; raises `UserError` if the author may not edit it."""
        quoted_turn, exchange = await self.find_quoted_exchange(message)
        await self.require_edit_access(message, quoted_turn, exchange)
        return quoted_turn.turn.text

    async def require_edit_access(
        self,
        message: IncomingMessage,
        turn: StoredTurn,
        exchange: Exchange,
        *,
        audit_name: str | None = None,
    ) -> None:
        """Raise `UserError` if the author of the command may not edit the message.

        Messages may be edited by their authors, and answers by the asker and by admins.
        """
        is_user_message = turn.turn.role == "user"
        if is_user_message and turn.turn.part_names:
            raise UserError(NOT_REMEMBERED_NOTICE)
        is_own_question = exchange.question.turn.is_from(message.author)
        if is_own_question and not (is_user_message and writes_as_group(message)):
            return
        if is_user_message:  # as the group: unknown which admin wrote it
            raise UserError(translatable("Only the person who wrote that message can change it."))
        await self.admins.require_admin(message, _CHANGE_ANSWER_ACTION, audit_name=audit_name)

    async def is_asker(self, message: IncomingMessage) -> bool:
        """Return whether the command's author asked the question of the quoted answer."""
        try:
            quoted_turn, exchange = await self.find_quoted_exchange(message)
        except UserError:
            return False
        return quoted_turn.turn.role != "user" and exchange.question.turn.is_from(message.author)

    async def require_asker(self, message: IncomingMessage, exchange: Exchange) -> None:
        """Raise `UserError` if the author of the command is neither the asker nor an admin."""
        if not exchange.question.turn.is_from(message.author):
            await self.admins.require_admin(message, RETRY_ACTION, audit_name=RETRY_AUDIT_NAME)

    async def require_reader(self, message: IncomingMessage, exchange: Exchange) -> None:
        """Raise `UserError` if a personal history belongs to somebody else, except for admins."""
        is_own_question = exchange.question.turn.is_from(message.author)
        if message.address.has_personal_history and not is_own_question:
            await self.admins.require_admin(message, _SEE_CONTEXT_ACTION, audit_name="read context")

    async def _check_stop_press(self, press: ButtonPress, button: ButtonData) -> None:
        address = press.address
        event_key = button.part_name.removeprefix(f"{address.source}:").rpartition("/")[0]
        events_in_progress = await self.inbox.find_in_progress(address, event_key)
        if not events_in_progress:
            raise UserError(translatable("No answer is being written here."))
        authors = (
            one.said.author if isinstance(one, MessageEdit) else one.author
            for one in events_in_progress
            if isinstance(one, IncomingMessage | ButtonPress | ChatJoin | MessageEdit)
        )
        await self._require_asker_or_admin(press, {one.id for one in authors if one is not None})

    async def _require_asker_or_admin(
        self, press: ButtonPress, author_ids: Collection[str]
    ) -> None:
        if press.author.id in author_ids:
            return
        is_admin = await self.admins.find_admin_status(press)
        if is_admin is None:
            raise UserError(unknown_admin_notice(press, _PRESS_OTHERS_BUTTONS_ACTION))
        if not is_admin:
            raise UserError(NOT_AUTHOR_NOTICE)


def _has_own_buttons(turn: Turn) -> bool:
    """Return whether a turn is a command that the bot answered with buttons."""
    command = parse_command(turn.text) if turn.role == "user" and turn.part_names else None
    return command is not None and command.name in _COMMANDS_WITH_BUTTONS
