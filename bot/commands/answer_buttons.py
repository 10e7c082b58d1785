"""Look up what the buttons under an answer stand for, and who may press them."""

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

from bot.chat.button import FORM_ACTIONS, MENU_ACTIONS, ButtonAction, ButtonData, read_button
from bot.chat.command import parse
from bot.chat.incoming import (
    Address,
    Deleted,
    Edited,
    ForgetRequested,
    Incoming,
    Joined,
    Person,
    Pressed,
    Said,
)
from bot.chat.session import Claim, Exchange, StoredTurn, Turn
from bot.commands.admins import AdminCheck, unknown_admin_notice
from bot.commands.anonymous_admins import is_the_group, writes_as_the_group
from bot.commands.newest_question import RETRY_OTHERS, RETRY_QUESTION
from bot.errors import StoreError, UserError
from bot.ports import Conversations, Inbox
from bot.texts.text import Text, language_of, translatable, translate

BUTTON_GONE = translatable("This button no longer works: its answer was deleted or replaced.")
MOVED_ON = translatable(
    "The conversation has moved on: this button works only under the newest answer."
)
NOT_YOURS = translatable(
    "Only the person who asked the question, or an admin, can use this button."
)
NOT_REMEMBERED = translatable("That message is not in my memory.")
_CHANGE_OTHERS = translatable("change the answer to somebody else's question")
_SEE_OTHERS = translatable("see what was read for the answer to somebody else's question")
_PRESS_OTHERS = translatable("use the buttons of somebody else's question")
_WITH_BUTTONS = frozenset({"preset", "settings", "forget"})
"""The commands whose replies have buttons of their own."""
_HOW_TO_TYPE = {
    ButtonAction.NAME: translatable("Write /preset use and the name of the preset."),
    ButtonAction.ABOUT: translatable(
        "Write /me and how you describe yourself, or /me clear to delete it."
    ),
}
"""What a person is told where there is no form to write in."""
_TOO_OLD = translatable(
    "This button works for 15 minutes only, so nothing was deleted. Send /forget me again."
)
_TIME_TO_CONFIRM = timedelta(minutes=15)
_MAX_TURNS_BEFORE = 400
_FOR_AUTHOR_ALONE = MENU_ACTIONS | {ButtonAction.FORGET, ButtonAction.KEEP}
_NEEDS_NEWEST = frozenset({ButtonAction.RETRY, ButtonAction.CONTINUE})
_AUDITED_AS = {
    ButtonAction.RETRY: RETRY_QUESTION,
    ButtonAction.CONTINUE: "continue answer",
    ButtonAction.VERSION: "choose version",
    ButtonAction.DELETE: "delete answer",
}
"""What it is in the audit log that an admin presses a button of somebody else's question."""


class AnswerButtons:
    """Finds the answer of a button in the store; only who asked may press, and admins."""

    def __init__(
        self,
        conversations: Conversations,
        inbox: Inbox,
        admins: AdminCheck,
        route: Callable[[Pressed], Awaitable[Pressed]],
        asks_by_replies: Callable[[Address], bool] = lambda _: False,
        limit: Callable[[Pressed], Awaitable[Text | None]] | None = None,
    ) -> None:
        """Take where answers are, and what tells of a press by whom and where it was made.

        Args:
            conversations: answers.
            inbox: questions.
            admins: who is an admin.
            route: tells the history of a press.
            asks_by_replies: whether people write free values in replies (`Limits`).
            limit: counts a press, and returns why it is refused if there were too many;
                None: any number is followed.
        """
        self._limit = limit
        self._asks_by_replies = asks_by_replies
        self._route = route
        self._conversations = conversations
        self._inbox = inbox
        self._admins = admins

    async def refusal(self, pressed: Pressed) -> str | None:
        """Return what the person is told, instead of doing what the button says; None: it is done.

        A platform asks before it stores the press, and tells the person alone.
        """
        data = read_button(pressed)
        try:
            excess = await self._limit(pressed) if self._limit is not None else None
            if excess is not None:
                return translate(excess, language_of(pressed.locale))
            if data is not None and data.action is ButtonAction.STOP:
                await self._check_stop(pressed, data)
            elif data is not None:
                await self.find(pressed, data)
                is_typed = data.action in FORM_ACTIONS and not pressed.values  # there is no form
                if is_typed and not self._asks_by_replies(pressed.address):
                    return translate(_HOW_TO_TYPE[data.action], language_of(pressed.locale))
        except UserError as error:
            return translate(error.text, language_of(pressed.locale))
        except StoreError:  # it is checked again before anything is done
            return None
        return None

    async def find(self, pressed: Pressed, data: ButtonData) -> Exchange:
        """Return the question and the answers that a button stands under.

        Raises:
            UserError: it is not known any more, or the person may not press it; the text says so.
        """
        pressed = await self._route(pressed)
        exchange = await self._conversations.load_answered(
            pressed.address.conversation, data.part, _MAX_TURNS_BEFORE
        )
        if exchange is None:
            raise UserError(BUTTON_GONE)
        author = exchange.question.turn.speaker
        if data.action in _FOR_AUTHOR_ALONE and author is not None:
            # Whoever writes as the group itself presses under their own name.
            is_anonymous = is_the_group(author, pressed.address) and not pressed.is_private
            if is_anonymous and data.action in MENU_ACTIONS:
                await self._check_author(pressed, ())
            elif author.id != pressed.author.id:
                raise UserError(
                    translatable("Only the person who asked for it can use this button.")
                )
        else:
            await self._check_author(pressed, {author.id} if author is not None else set())
        asked_at = pressed.shown_at or exchange.question.turn.at
        if data.action is ButtonAction.FORGET and pressed.at - asked_at > _TIME_TO_CONFIRM:
            raise UserError(_TOO_OLD)
        if data.action in _NEEDS_NEWEST and exchange.answers and not exchange.is_newest:
            raise UserError(MOVED_ON)
        return exchange

    async def find_to_change(self, pressed: Pressed, data: ButtonData) -> Exchange:
        """Return what `find` does, and note in the audit log what an admin does to others'.

        Raises:
            UserError: as `find` does.
        """
        exchange = await self.find(pressed, data)
        author, audited_as = exchange.question.turn.speaker, _AUDITED_AS.get(data.action)
        if audited_as is not None and (author is None or author.id != pressed.author.id):
            await self._admins.note(pressed, audited_as)
        return exchange

    async def find_quoted(self, said: Said) -> tuple[StoredTurn, Exchange]:
        """Return the turn that a command replies to, and the exchange that it belongs to.

        The notice that an answer failed stands for its question, which is not in the history.

        Raises:
            UserError: it is not in the history.
        """
        conversation, exchange = said.address.conversation, None
        reader = Claim(conversation, 0, "")  # nothing is written for it
        message_id = (said.quote.message_id if said.quote is not None else None) or ""
        turns = await self._conversations.find_turns(reader, [message_id])
        found = next((one for one in turns if not _is_menu(one.turn)), None)
        if found is not None and found.turn.role == "user" and not found.turn.sent_as:
            exchange = await self._conversations.load_exchange(
                reader, message_id, _MAX_TURNS_BEFORE
            )
        elif found is not None:
            exchange = await self._conversations.load_answered(
                conversation, found.turn.sent_as[-1], _MAX_TURNS_BEFORE
            )
        if found is None or exchange is None:
            raise UserError(NOT_REMEMBERED)
        return found, exchange

    async def text_to_edit(self, said: Said) -> str:
        """Return the text of the turn that a command replies to, if its author may change it.

        Raises:
            UserError: it is not in the history, or it is somebody else's.
        """
        found, exchange = await self.find_quoted(said)
        await self.check_editor(said, found, exchange)
        return found.turn.text

    async def check_editor(
        self, said: Said, found: StoredTurn, exchange: Exchange, *, audited_as: str | None = None
    ) -> None:
        """Refuse to change what others said, and answers to others' questions; admins may those.

        Args:
            said: asks for it.
            found: the turn that is to be changed.
            exchange: what it belongs to.
            audited_as: what it is in the audit log if an admin changes the answer to somebody
                else's question; None: it is not changed yet.

        Raises:
            UserError: the author may not.
        """
        author = exchange.question.turn.speaker
        if found.turn.role == "user" and found.turn.sent_as:
            raise UserError(NOT_REMEMBERED)
        is_said = found.turn.role == "user"
        is_own = author is not None and author.id == said.author.id
        if is_own and not (is_said and writes_as_the_group(said)):
            return
        if is_said:  # by which of the admins who write anonymously is not known
            raise UserError(translatable("Only the person who said it can change it."))
        await self._admins.require(said, _CHANGE_OTHERS, audited_as=audited_as)

    async def is_asker(self, said: Said) -> bool:
        """Return whether a command replies to the answer to a question of its own author."""
        try:
            found, exchange = await self.find_quoted(said)
        except UserError:
            return False
        author = exchange.question.turn.speaker
        return found.turn.role != "user" and author is not None and author.id == said.author.id

    async def check_asker(self, said: Said, exchange: Exchange) -> None:
        """Refuse to ask others' questions again, except for admins; raises `UserError`."""
        author = exchange.question.turn.speaker
        if author is None or author.id != said.author.id:
            await self._admins.require(said, RETRY_OTHERS, audited_as=RETRY_QUESTION)

    async def check_reader(self, said: Said, exchange: Exchange) -> None:
        """Refuse to tell what was read of another person's own history, except to admins.

        Raises:
            UserError: each person has a history here, and the author is another one.
        """
        author = exchange.question.turn.speaker
        is_own = author is not None and author.id == said.author.id
        if said.address.is_of_one_person and not is_own:
            await self._admins.require(said, _SEE_OTHERS, audited_as="read context")

    async def _check_stop(self, pressed: Pressed, data: ButtonData) -> None:
        address = pressed.address
        key = data.part.removeprefix(f"{address.source}:").rpartition("/")[0]
        asked = await self._inbox.find_in_progress(address, key)
        if not asked:
            raise UserError(translatable("No answer is being written here."))
        authors = [_author(one) for one in asked]
        await self._check_author(pressed, {one.id for one in authors if one is not None})

    async def _check_author(self, pressed: Pressed, author_ids: Collection[str]) -> None:
        if pressed.author.id in author_ids:
            return
        is_admin = await self._admins.is_known_admin(pressed)
        if is_admin is None:
            raise UserError(unknown_admin_notice(pressed, _PRESS_OTHERS))
        if not is_admin:
            raise UserError(NOT_YOURS)


def _is_menu(turn: Turn) -> bool:
    """Whether a turn keeps who asked for a menu or a question of the service."""
    command = parse(turn.text) if turn.role == "user" and turn.sent_as else None
    return command is not None and command.name in _WITH_BUTTONS


def _author(asked: Incoming) -> Person | None:
    match asked:
        case Said() | Pressed() | Joined():
            return asked.author
        case Edited():
            return asked.said.author
        case Deleted() | ForgetRequested():
            return None
