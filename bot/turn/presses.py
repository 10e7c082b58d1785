"""Pressed buttons, and commands that reply to a message."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from bot.chat.attachments import with_kept_files
from bot.chat.command import ButtonAction, ButtonData, Command, parse, read_button
from bot.chat.incoming import Address, Edited, Pressed, Said, WakeReason
from bot.chat.outgoing import Face, OutgoingPart, ReplyPrompt
from bot.chat.session import (
    Claim,
    Exchange,
    HistoryChange,
    InboxMessage,
    StoredTurn,
    Turn,
    TurnRange,
    TurnResult,
)
from bot.commands.answers import BUTTON_GONE, NOT_REMEMBERED, AnswerButtons, pick_speakers
from bot.commands.authority import is_the_group
from bot.commands.handlers import CommandHandlers
from bot.commands.menus import FORM_TEXTS
from bot.commands.privacy import PersonForgetting
from bot.commands.request import AskedQuestion, CommandRequest, CommandResult
from bot.errors import UserError
from bot.replying.answer_parts import (
    LongAnswer,
    answer_buttons,
    count_messages,
    message_names,
    shorten,
    supported_form,
)
from bot.replying.live_replies import LiveReplies
from bot.routing.decide import QUESTIONS
from bot.routing.presets import ActiveCharacters, PresetResolver
from bot.storage.conversations import Conversations
from bot.texts.text import Text, joined, language_of, translatable, translate
from bot.turn.edits import AnswersInPlace, EditedMessages
from bot.value_class import value_class

_GO_ON = translatable("Go on.")
_FORGOTTEN = translatable(
    "I am now deleting everything that you said, in all channels, with the answers to"
    " it and everything that was stored about it."
)
_KEPT = translatable("Nothing was deleted.")


@value_class
class ChosenCommand:
    """Something was chosen from a menu, and did what a command does."""

    request: CommandRequest
    result: CommandResult
    """What it has brought about; nothing, if only another menu is shown."""
    menu: CommandResult
    """What takes the place of the menu."""


@value_class
class PressedButtons:
    """Works out what a press changes; nothing is stored before the result is finished."""

    buttons: AnswerButtons
    resolver: PresetResolver
    replies: LiveReplies
    in_place: AnswersInPlace
    forgetting: PersonForgetting
    commands: CommandHandlers

    async def follow(
        self, claim: Claim, message: InboxMessage, pressed: Pressed
    ) -> TurnResult | AskedQuestion | ChosenCommand:
        """Return what the press changes, what is to be answered as a question, or a command.

        A platform asks before it stores a press. Where something else was done meanwhile, as the
        answer to a newer question, a message tells the person why nothing happens.

        Raises:
            UserError: the press is refused; the text names the person where others read it.
        """
        data = read_button(pressed)
        if data is None or data.action is ButtonAction.STOP:  # a signal has stopped the answer
            return TurnResult()
        exchange = await self._find(pressed, data)
        if exchange is None:
            return TurnResult()
        active = await self.resolver.resolve(pressed.scopes)
        match data.action:
            case ButtonAction.DELETE:
                ids = [one.id for versions in exchange.versions for one in versions]
                return TurnResult(change=HistoryChange(deleted=ids), in_place_of=exchange.parts)
            case ButtonAction.VERSION:
                return self._show_version(message, pressed, data, exchange, active)
            case ButtonAction.CONTINUE:
                said = _said(pressed, translate(_GO_ON, language_of(pressed.locale)))
                return AskedQuestion(said, pick_speakers(active, _turns(exchange)))
            case ButtonAction.RETRY:
                return await self._retry(claim, message, pressed, exchange, active)
            case ButtonAction.FORGET:
                await self.forgetting.request(pressed)
                return self._replaced(pressed, exchange, _FORGOTTEN)
            case ButtonAction.KEEP:
                return self._replaced(pressed, exchange, _KEPT)
            case ButtonAction.NAME | ButtonAction.ABOUT if not pressed.values:
                return self._ask(pressed, data, exchange)
            case _:
                return await self._choose(pressed, data, exchange, active)

    async def _find(self, pressed: Pressed, data: ButtonData) -> Exchange | None:
        """Return the exchange that a press is for; None if it was deleted, which was wanted."""
        try:
            return await self.buttons.find_to_change(pressed, data)
        except UserError as error:
            if data.action is ButtonAction.DELETE and error.text == BUTTON_GONE:
                return None
            raise _addressed(pressed, error) from None

    def _ask(self, pressed: Pressed, data: ButtonData, exchange: Exchange) -> TurnResult:
        """Ask who pressed for a free value, where that is written in a reply."""
        language = language_of(pressed.locale)
        shown = translate(QUESTIONS[data.action], language)
        [asked, *_] = self.replies.final_parts(pressed.address, shown)
        prompt = ReplyPrompt(
            exchange.question.turn.message_id or pressed.message_id or "",
            translate(FORM_TEXTS[data.action][1], language),
        )
        content = replace(asked.content, prompt=prompt)
        return TurnResult(outgoing=(replace(asked, content=content),))

    async def _choose(
        self, pressed: Pressed, data: ButtonData, exchange: Exchange, active: ActiveCharacters
    ) -> ChosenCommand:
        """Run the command that a choice stands for; the menu then shows what holds."""
        menus, result, problem = self.commands.menus, CommandResult(""), ""
        author = exchange.question.turn.speaker
        if author is not None and is_the_group(author, pressed.address):
            # Everybody is told who changed what: who wrote as the group stays unnamed.
            pressed = replace(pressed, author=replace(pressed.author, name=author.name))
        asked = CommandRequest(
            Command(""), _said(pressed, ""), active, (), pressed.at, part=exchange.parts[0]
        )
        try:
            line = menus.command_line(data, pressed, active.names)
            command = parse(line) if line is not None else None
            if command is not None:
                result = await self.commands.handle(replace(asked, command=command))
        except UserError as error:
            problem = translatable("⚠ {problem}", problem=error.text)
        asked = replace(asked, active=await self.resolver.resolve(pressed.scopes))
        menu = await menus.after_choice(data, asked)
        text = joined([problem, menu.text]) if problem else menu.text
        return ChosenCommand(asked, result, replace(menu, text=text, in_place_of=exchange.parts))

    async def _retry(
        self,
        claim: Claim,
        message: InboxMessage,
        pressed: Pressed,
        exchange: Exchange,
        active: ActiveCharacters,
    ) -> TurnResult | AskedQuestion:
        question = exchange.question.turn
        author = question.speaker or pressed.author
        asked = replace(
            _said(pressed, question.text),
            author=author,
            message_id=question.message_id,
            asked_again_by=pressed.author.id,
        )
        asked = with_kept_files(asked, question, exchange.before.turns)
        speakers = pick_speakers(active, _turns(exchange))
        if not exchange.answers:  # its answer has failed: nothing of it is in the history
            return AskedQuestion(asked, speakers, exchange.parts, tuple(exchange.before.turns))
        return await self.in_place.answer(
            claim, message, asked, pressed.at, exchange, active, speakers, {}
        )

    def _replaced(self, pressed: Pressed, exchange: Exchange, text: Text) -> TurnResult:
        """Let a text of the service take the place of the message with the button."""
        shown = translate(text, language_of(pressed.locale))
        first, *others = self.replies.final_parts(pressed.address, shown)
        outgoing = (replace(first, is_response=True), *others)
        return TurnResult(outgoing=outgoing, in_place_of=exchange.parts)

    def _show_version(
        self,
        message: InboxMessage,
        pressed: Pressed,
        data: ButtonData,
        exchange: Exchange,
        active: ActiveCharacters,
    ) -> TurnResult:
        """Let a version of every answer take its place, and show it in the same messages."""
        versions: dict[int, Turn] = {}
        restored: list[int] = []
        parts: list[OutgoingPart] = []
        for answer, all_versions in zip(exchange.answers, exchange.versions, strict=True):
            chosen = _pick_version(answer, all_versions, data.number)
            line, face = find_speaker(
                self.resolver, self.replies, chosen.turn, pressed.address, active
            )
            text = line + chosen.turn.text
            number = count_messages(parts)
            whole = self.replies.final_parts(pressed.address, text, number, face)
            form = self._form(chosen.turn, pressed.address, active)
            name_part = partial(_part_name, message, exchange)
            shown = shorten(whole, text, form, pressed.locale, name_part)
            parts += shown
            if chosen.id != answer.id:
                names = tuple(_part_name(message, exchange, one.part) for one in shown)
                versions[answer.id] = replace(chosen.turn, sent_as=names)
                restored.append(chosen.id)
        if not versions:  # it is shown already
            return TurnResult()
        change = HistoryChange(versions=versions, restored=restored)
        name = _part_name(message, exchange, parts[-1].part)
        count = len(exchange.versions[-1])
        buttons = answer_buttons(name, pressed.locale, data.number, count)
        shown = self.replies.with_buttons(pressed.address, parts, buttons)
        return TurnResult(outgoing=shown, change=change, in_place_of=exchange.parts)

    def _form(self, turn: Turn, address: Address, active: ActiveCharacters) -> LongAnswer:
        """Return how a long answer is sent."""
        if turn.preset not in active.names:
            return "parts"
        form = active.pick([turn.preset])[0].preset.long_answer
        return supported_form(form, self.replies.limits(address))


def find_speaker(
    resolver: PresetResolver,
    replies: LiveReplies,
    turn: Turn,
    address: Address,
    active: ActiveCharacters,
) -> tuple[str, Face | None]:
    """Return what tells readers who speaks: a line, or a face where the platform has faces."""
    if turn.preset not in active.names:
        return "", None
    [speaker] = active.pick([turn.preset])
    names, limits = resolver.character_names(active.names), replies.limits(address)
    return active.speaker_line(speaker, names, limits), active.face(speaker, names, limits)


def _addressed(pressed: Pressed, error: UserError) -> UserError:
    """Return a refusal that names who is meant, where others read it."""
    if pressed.is_private:
        return error
    name = " ".join(pressed.author.name.split())
    return UserError(translatable("{name}: {problem}", name=name, problem=error.text))


def _said(pressed: Pressed, text: str) -> Said:
    """Return a text as if the person had written it to the bot instead of pressing."""
    return Said(
        address=pressed.address,
        external_key=pressed.external_key,
        message_id=None,
        author=pressed.author,
        text=text,
        at=pressed.at,
        wake=WakeReason.DM,
        scopes=pressed.scopes,
        author_is_admin=pressed.author_is_admin,
        in_thread=pressed.in_thread,
        thread_title=pressed.thread_title,
        locale=pressed.locale,
        is_private=pressed.is_private,
    )


def _turns(exchange: Exchange) -> list[Turn]:
    return [one.turn for one in exchange.answers]


def _pick_version(answer: StoredTurn, versions: Sequence[StoredTurn], number: int) -> StoredTurn:
    """Return a version by its number from 1; the active one where there is none."""
    return versions[number - 1] if 1 <= number <= len(versions) else answer


def _part_name(message: InboxMessage, exchange: Exchange, part: int) -> str:
    replaced = message_names(exchange.parts)
    if part < len(replaced):
        return replaced[part]
    return message.part_name(part)


_MAX_TURNS = 400


@value_class
class QuotedMessages:
    """Works out what changes; nothing is stored before the result is finished."""

    conversations: Conversations
    buttons: AnswerButtons
    resolver: PresetResolver
    replies: LiveReplies
    edited_messages: EditedMessages

    async def answered_at(self, said: Said) -> datetime:
        """Return when the answer was given that a command replies to; raises `UserError`."""
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_reader(said, exchange)
        answers = exchange.answers if found.turn.role == "user" else (found,)
        if not answers:
            raise UserError(translatable("I have not answered that message."))
        return answers[0].turn.at

    async def retry_from(
        self, claim: Claim, request: CommandRequest
    ) -> tuple[AskedQuestion, TurnRange | None]:
        """Return the question to answer again, and what leaves the history with its old answer.

        A question whose answer failed is answered in place of the notice; nothing leaves.

        Raises:
            UserError: it is not in the session any more, or somebody else asked.
        """
        said = request.incoming
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_asker(said, exchange)
        question = exchange.question.turn
        asked = replace(
            said,
            text=question.text,
            author=question.speaker or said.author,
            asked_again_by=said.author.id,
            message_id=question.message_id,
            quote=None,
            wake=WakeReason.DM,
        )
        asked = with_kept_files(asked, question, exchange.before.turns)
        speakers = pick_speakers(request.active, [one.turn for one in exchange.answers])
        if found.turn.role == "user" and found.turn.sent_as:
            earlier = tuple(exchange.before.turns)
            return AskedQuestion(asked, speakers, exchange.parts, earlier), None
        session = await self.conversations.load_session(claim, _MAX_TURNS)
        newer = _turns_since(question, session.turns)
        return AskedQuestion(asked, speakers), TurnRange(0, newer)

    async def edit(
        self, claim: Claim, message: InboxMessage, request: CommandRequest
    ) -> TurnResult:
        """Change what a message says in the history, and an answer in the channel as well.

        Raises:
            UserError: there is no text, it is not in the history, or it is somebody else's.
        """
        said, text = request.incoming, request.argument
        if not text:
            example = "/edit It was a dark night."
            raise UserError(translatable("Which text? For example: {example}", example=example))
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_editor(said, found, exchange, audited_as="edit answer")
        if found.turn.role != "user":
            return self._edit_answer(message, request, found, exchange)
        changed = replace(
            said,
            text=text,
            attachments=exchange.question.turn.files,
            message_id=exchange.question.turn.message_id,
            quote=None,
            wake=WakeReason.REPLY if exchange.answers else None,
            interaction=None,
        )
        result = await self.edited_messages.follow(
            claim, message, Edited(said.external_key, changed, said.at)
        )
        return result if isinstance(result, TurnResult) else TurnResult()

    def _edit_answer(
        self,
        message: InboxMessage,
        request: CommandRequest,
        found: StoredTurn,
        exchange: Exchange,
    ) -> TurnResult:
        """Let a new version take the place of an answer, in the same messages."""
        said, active = request.incoming, request.active
        answer = _active_version(found, exchange)
        parts = tuple(name for name in answer.turn.sent_as if name in exchange.parts)
        line, face = find_speaker(self.resolver, self.replies, answer.turn, said.address, active)
        outgoing = self.replies.final_parts(said.address, line + request.argument, 0, face)
        messages = message_names(parts)
        names = tuple(
            messages[one.part] if one.part < len(messages) else message.part_name(one.part)
            for one in outgoing
        )
        version = replace(answer.turn, text=request.argument, at=said.at, sent_as=names)
        if answer == exchange.answers[-1] and _has_buttons(active):
            count = len(exchange.versions[-1]) + 1
            buttons = answer_buttons(names[-1], said.locale, count, count)
            outgoing = self.replies.with_buttons(said.address, outgoing, buttons)
        change = HistoryChange(versions={answer.id: version})
        return TurnResult(outgoing=outgoing, change=change, in_place_of=parts)


def _turns_since(question: Turn, turns: Sequence[Turn]) -> int:
    """Count the turns from a question on; raises `UserError` if it is not among them."""
    for number, turn in enumerate(reversed(turns), 1):
        if (turn.role, turn.at, turn.text) == (question.role, question.at, question.text):
            return number
    raise UserError(NOT_REMEMBERED)


def _active_version(found: StoredTurn, exchange: Exchange) -> StoredTurn:
    """Return the answer that is shown in the messages of a turn."""
    sent_as = set(found.turn.sent_as)
    shown = (one for one in exchange.answers if sent_as & set(one.turn.sent_as))
    return next(shown, exchange.answers[-1])


def _has_buttons(active: ActiveCharacters) -> bool:
    return active.first.preset.buttons
