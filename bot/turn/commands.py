"""Run commands, send their replies, and store what they change: settings, session and history.

If a command changes a channel but only its author sees the reply, as after a menu choice on
Discord, a separate message tells everybody who changed what.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from bot.chat.command import ButtonAction, Command
from bot.chat.incoming import Address, ChatJoin, IncomingMessage, MessageEdit, WakeReason
from bot.chat.outgoing import Face, MessageContent, OutgoingPart, PrivateDelivery
from bot.chat.session import (
    Claim,
    Exchange,
    HistoryChange,
    InboxMessage,
    StoredTurn,
    Turn,
    TurnRange,
    TurnResult,
    build_repeated_question,
)
from bot.commands.access import explain_refusal
from bot.commands.answers import NOT_REMEMBERED_NOTICE, pick_speakers
from bot.commands.handlers import has_private_reply
from bot.commands.request import CommandRequest, CommandResult, OpenQuestion
from bot.errors import PrivateError, UserError
from bot.replying.answer_parts import action_buttons, answer_buttons
from bot.routing.decide import Access
from bot.texts.text import (
    join_texts,
    supported_language,
    translatable,
    translatable_count,
    translate,
)
from bot.turn.edits import EditHandler
from bot.turn.finishing import (
    PAUSED_NOTICE,
    QuestionAnswerer,
    TurnFinisher,
    TurnOutcome,
    TurnServices,
    add_private_response,
)
from bot.turn.message_groups import MessageGroup, user_turn
from bot.value_class import value_class

_FORGOTTEN_NOTICE = translatable(
    "I have forgotten that message and everything that was stored about it."
)
_CHANGED_NOTICE = translatable("Changed.")
_RECAP_STOPPED_NOTICE = translatable("The recap was stopped.")
_IMPOSSIBLE_NOTICE = translatable("I can't do that here.")
_MAX_LOADED_TURNS = 400
_PreparedGreeting: TypeAlias = tuple[Turn | None, str, Face | None]
"""A greeting with its name line and face, if there is one."""


@value_class
class CommandRunner:
    """Runs commands that were typed or chosen in a menu."""

    services: TurnServices
    edit_handler: EditHandler
    answerer: QuestionAnswerer
    finisher: TurnFinisher

    async def run(self, group: MessageGroup, request: CommandRequest) -> TurnOutcome:
        """Run a command; raises `UserError`, or `PrivateError` if the command is private."""
        try:
            return await self._run(group, request)
        except UserError as error:
            if has_private_reply(request.command):
                raise PrivateError(error.text) from None
            raise

    async def _run(self, group: MessageGroup, request: CommandRequest) -> TurnOutcome:
        message, finisher, buttons = request.incoming, self.finisher, self.services.buttons
        quoted_id = message.quote.message_id if message.quote is not None else None
        is_about_quoted_message = quoted_id is not None
        is_report = request.command in {Command("report"), Command("settings", "report")}
        match request.command.name:
            case "retry" if is_about_quoted_message:
                question, replaced_turns = await self._find_question_to_retry(group.claim, request)
                return await self.answerer.answer(group, question, request.active, replaced_turns)
            case "edit" if is_about_quoted_message:
                edit_result = await self._edit_message(group, request)
                edit_result = add_private_response(group.message, edit_result, _CHANGED_NOTICE)
                return "command", await finisher.finish(group, edit_result)
            case "forget" if is_about_quoted_message:
                request = replace(request, is_asker=await buttons.is_asker(message))
            case name if (name == "context" or is_report) and is_about_quoted_message:
                quoted_turn, exchange = await buttons.find_quoted_exchange(message)
                if not is_report:
                    await buttons.require_reader(message, exchange)
                request = replace(request, answered_at=_find_answer_time(quoted_turn, exchange))
            case "memory" if quoted_id is not None:
                turns = await self.services.conversations.find_turns(group.claim, [quoted_id])
                request = replace(request, quoted_turn=turns[-1].turn if turns else None)
            case "recap":
                return "command", await self._run_recap(group, request)
            case _:
                pass
        result = await self.services.commands.handle(request)
        result = replace(result, is_private=result.is_private or has_private_reply(request.command))
        if (question_to_retry := result.question) is not None:
            return await self.answerer.answer(
                group, question_to_retry, request.active, result.removed_range
            )
        if result.forgotten_message_id is not None:
            return "command", await self._forget_message(group, result)
        return "command", await self.finish(group, request, result)

    async def _run_recap(self, group: MessageGroup, request: CommandRequest) -> InboxMessage | None:
        """Run /recap until it is done or its author stops it; raises `UserError` during a pause."""
        message, services = request.incoming, self.services
        if services.is_conversation_paused(message.address.recap_source_address.conversation):
            raise UserError(PAUSED_NOTICE)
        result = CommandResult(_RECAP_STOPPED_NOTICE)
        recap_context = services.stop_requests.stoppable_answer(group.claim, group.message, message)
        async with recap_context as stop_flag:
            with stop_flag.stoppable_block():
                result = await services.commands.handle(request)
        return await self.finish(group, request, replace(result, is_private=True))

    async def finish(
        self,
        group: MessageGroup,
        request: CommandRequest,
        result: CommandResult,
        menu_result: CommandResult | None = None,
    ) -> InboxMessage | None:
        """Store a command's result and reply; `menu_result` is its menu's new content, if any."""
        services, finisher, claim = self.services, self.finisher, group.claim
        result = await self.moderate_greeting(request.incoming, result)
        if result.keeps_unanswered_session:
            session = await services.conversations.load_session(claim, _MAX_LOADED_TURNS)
            has_session_begun = session.has_answer or len(session.turns) >= _MAX_LOADED_TURNS
            result = replace(result, starts_session=has_session_begun)
        if result.deletes_history:
            other_turn_count = await services.deletions.request_histories_deletion(request.incoming)
            deletion_notice = translatable_count(
                "Deleted for good: 1 message and everything that was stored about it.",
                "Deleted for good: {count} messages and everything that was stored about them.",
                other_turn_count + await finisher.delete_history(claim),
            )
            result = replace(result, text=join_texts([deletion_notice, result.text], " "))
        turn_result = await self._compose_result(group.message, request, result, menu_result)
        finish_turn = finisher.finish_forgetting if result.deleted_ids else finisher.finish
        next_message = await finish_turn(group, turn_result)
        if result.starts_session:
            for memory in services.memories:
                await memory.end_session(claim.conversation)
        return next_message

    async def refuse_access(
        self, group: MessageGroup, message: IncomingMessage, access: Access
    ) -> InboxMessage | None:
        """Finish a message whose author has no access; tell them once if they addressed the bot."""
        services, finisher = self.services, self.finisher
        if message.wake is None or message.is_late:
            return await finisher.finish(group, TurnResult())
        services.decisions.record_refusal(message, access)
        pairing_codes, needs_code = services.commands.pairing_codes, access.rule == "dm pairing"
        code = await pairing_codes.issue_code(message) if needs_code else ""
        should_tell_author = await services.access.should_report_refusal(message, access, code)
        if not (should_tell_author or message.interaction is not None):
            return await finisher.finish(group, TurnResult())
        if not should_tell_author and message.has_public_response:
            return await finisher.finish_with_text(group, _IMPOSSIBLE_NOTICE)
        notice = explain_refusal(access.rule, code)
        return await finisher.finish_with_text(group, notice, is_private=True, omits_hint=True)

    async def moderate_greeting(
        self, event: IncomingMessage | ChatJoin, result: CommandResult
    ) -> CommandResult:
        """Check a greeting as if it were an answer, if its character was created in a chat."""
        if not result.greeting:
            return result
        check = self.services.pipeline.model_requests.moderate_greeting
        greeting = await check(event, result.greeting_preset or "", result.greeting)
        return replace(result, greeting=greeting)

    async def greet(
        self, group: MessageGroup, scopes: Sequence[str], result: CommandResult
    ) -> InboxMessage | None:
        """Send a character's greeting to a group that the bot was added to, then `result.text`."""
        incoming, address = group.message.incoming, group.message.incoming.address
        greeting = await self._prepare_greeting(address, scopes, result, self.services.now())
        turn_result = self._greeting_result(group.message, greeting, 0)
        if result.text:
            part_number, replies = len(turn_result.outgoing), self.services.replies
            notice = replies.notice_parts(address, result.text, incoming.locale, part_number)
            turn_result = replace(turn_result, outgoing=[*turn_result.outgoing, *notice])
        return await self.finisher.finish(group, turn_result)

    async def forget_person(self, group: MessageGroup, person: str | None) -> InboxMessage | None:
        """Delete a person's messages, or everybody's if `person` is None, and derived data."""
        for scope in group.message.incoming.scopes[1:]:  # scopes whose settings an operator deleted
            self.services.resolver.characters.unload(scope)
            await self.finisher.forget_cached_data(scope)
        if person is None:
            await self.finisher.delete_history(group.claim)
            return await self.finisher.finish(group, TurnResult(starts_session=True))
        turn_ids = await self.services.conversations.find_turns_by_person(group.claim, person)
        result = TurnResult(change=HistoryChange(deleted_ids=turn_ids))
        return await self.finisher.finish_forgetting(group, result, person)

    # commands that reply to one message

    async def _find_question_to_retry(
        self, claim: Claim, request: CommandRequest
    ) -> tuple[OpenQuestion, TurnRange | None]:
        """Return the question to answer again, and the turns to replace, if any."""
        message, buttons = request.incoming, self.services.buttons
        quoted_turn, exchange = await buttons.find_quoted_exchange(message)
        await buttons.require_asker(message, exchange)
        question = exchange.question.turn
        earlier_turns = tuple(exchange.earlier_session.turns)
        repeated_question = build_repeated_question(message, question, earlier_turns)
        speakers = pick_speakers(request.active, [one.turn for one in exchange.answers])
        if quoted_turn.turn.role == "user" and quoted_turn.turn.part_names:
            return OpenQuestion(repeated_question, speakers, exchange.parts, earlier_turns), None
        session = await self.services.conversations.load_session(claim, _MAX_LOADED_TURNS)
        newer_turn_count = _count_turns_from(question, session.turns)
        return OpenQuestion(repeated_question, speakers), TurnRange(0, newer_turn_count)

    async def _edit_message(self, group: MessageGroup, request: CommandRequest) -> TurnResult:
        message, text, buttons = request.incoming, request.argument, self.services.buttons
        if not text:
            example = "/edit It was a dark night."
            raise UserError(translatable("Which text? For example: {example}", example=example))
        quoted_turn, exchange = await buttons.find_quoted_exchange(message)
        await buttons.require_edit_access(message, quoted_turn, exchange, audit_name="edit answer")
        if quoted_turn.turn.role != "user":
            return self._edit_answer(group.message, request, quoted_turn, exchange)
        question = exchange.question.turn
        edited_message = replace(
            message,
            text=text,
            attachments=question.files,
            message_id=question.message_id,
            quote=None,
            wake=WakeReason.REPLY if exchange.answers else None,
            interaction=None,
        )
        edit = MessageEdit(message.external_key, edited_message, message.at)
        result = await self.edit_handler.apply_edit(group, edit)
        return result if isinstance(result, TurnResult) else TurnResult()

    def _edit_answer(
        self, message: InboxMessage, request: CommandRequest, turn: StoredTurn, exchange: Exchange
    ) -> TurnResult:
        incoming, active, replies = request.incoming, request.active, self.services.replies
        answer = _find_shown_version(turn, exchange)
        parts = tuple(name for name in answer.turn.part_names if name in exchange.parts)
        name_line, face = self.services.find_name_and_face(answer.turn, incoming.address, active)
        outgoing_parts = replies.final_parts(
            incoming.address, name_line + request.argument, 0, face
        )
        part_names = tuple(message.choose_part_name(parts, one.number) for one in outgoing_parts)
        version = replace(answer.turn, text=request.argument, at=incoming.at, part_names=part_names)
        if answer == exchange.answers[-1] and active.first.preset.buttons:
            version_count = len(exchange.versions[-1]) + 1
            buttons = answer_buttons(part_names[-1], incoming.locale, version_count, version_count)
            outgoing_parts = replies.with_buttons(incoming.address, outgoing_parts, buttons)
        history_change = HistoryChange(new_versions={answer.id: version})
        return TurnResult(outgoing=outgoing_parts, change=history_change, replaced_part_names=parts)

    async def _forget_message(
        self, group: MessageGroup, result: CommandResult
    ) -> InboxMessage | None:
        services, incoming = self.services, group.message.incoming
        message_id = result.forgotten_message_id or ""
        turns = [*await services.conversations.find_turns(group.claim, [message_id])]
        if result.deletes_answers:
            exchange = await services.conversations.load_exchange(group.claim, message_id, 0)
            turns += [one for each in (exchange.versions if exchange else ()) for one in each]
        if not turns:
            return await self.finisher.finish_with_text(group, NOT_REMEMBERED_NOTICE)
        if isinstance(incoming, IncomingMessage):
            await services.deletions.request_copy_deletion(incoming, message_id)
        parts = services.replies.notice_parts(incoming.address, _FORGOTTEN_NOTICE, incoming.locale)
        change = HistoryChange(deleted_ids=[one.id for one in turns])
        return await self.finisher.finish_forgetting(group, TurnResult((), parts, change=change))

    # replies

    async def _compose_result(
        self,
        message: InboxMessage,
        request: CommandRequest,
        result: CommandResult,
        menu_result: CommandResult | None,
    ) -> TurnResult:
        incoming, replies = request.incoming, self.services.replies
        address = incoming.address
        is_hidden = message.incoming.interaction is not None and not incoming.has_public_response
        greeting = await self._prepare_greeting(address, incoming.scopes, result, request.now)
        turn, name_line, face = greeting
        is_greeting_separate = is_hidden or bool(name_line) or face is not None
        texts = (
            [result.text]
            if is_greeting_separate or not result.greeting
            else [result.text, result.greeting]
        )
        reply = menu_result or replace(result, text=join_texts(texts, "\n\n"))
        reply_result = self._to_turn_result(message, incoming, reply)
        outgoing = list(reply_result.outgoing)
        if is_hidden and result.changes_channel and not incoming.is_private:
            name = " ".join(incoming.author.name.split())
            text = translatable("Changed by {name}: {change}", name=name, change=result.text)
            text = text if name else join_texts([result.text])  # people who opted out have no name
            outgoing += replies.notice_parts(address, text, incoming.locale, len(outgoing))
        for person, text in result.private_notices:
            notice = replies.notice_parts(address, text, incoming.locale, len(outgoing))
            private_delivery = PrivateDelivery(person, incoming.locale, is_quiet=True)
            outgoing += [replace(one, private_delivery=private_delivery) for one in notice]
        greeting_result = TurnResult([turn] if turn else [])
        if is_greeting_separate:
            greeting_result = self._greeting_result(message, greeting, len(outgoing))
        return replace(
            reply_result,
            turns=[*result.turns, *greeting_result.turns],
            outgoing=[*outgoing, *greeting_result.outgoing],
            starts_session=result.starts_session,
            removed_range=result.removed_range,
            change=HistoryChange(deleted_ids=result.deleted_ids) if result.deleted_ids else None,
        )

    async def _prepare_greeting(
        self, address: Address, scopes: Sequence[str], result: CommandResult, now: datetime
    ) -> _PreparedGreeting:
        if not result.greeting:
            return None, "", None
        turn = Turn("assistant", result.greeting, None, now, result.greeting_preset)
        # The command may have changed who answers.
        active = await self.services.resolver.resolve(scopes)
        return turn, *self.services.find_name_and_face(turn, address, active)

    def _greeting_result(
        self, message: InboxMessage, greeting: _PreparedGreeting, first_part_number: int
    ) -> TurnResult:
        """Return separate messages that greet the channel, numbered from `first_part_number`."""
        turn, name_line, face = greeting
        if turn is None:
            return TurnResult()
        address, text = message.incoming.address, name_line + turn.text
        parts = self.services.replies.final_parts(address, text, first_part_number, face)
        part_names = tuple(message.part_name(one.number) for one in parts)
        return TurnResult([replace(turn, part_names=part_names)], parts)

    def _to_turn_result(
        self, message: InboxMessage, incoming: IncomingMessage, reply: CommandResult
    ) -> TurnResult:
        """Return a result with a reply to the author, whose menus only the author may use."""
        replies, address = self.services.replies, incoming.address
        text = translate(reply.text, supported_language(incoming.locale))
        outgoing: Sequence[OutgoingPart] = replies.final_parts(address, text)
        if reply.file is not None:
            outgoing = (OutgoingPart(0, MessageContent(text), file=reply.file),)
        if reply.is_private:
            outgoing = self.finisher.make_private_to_author(incoming, outgoing)
        part_names = tuple(message.part_name(one.number) for one in outgoing)
        buttons = reply.buttons
        if reply.asks_for_age:
            buttons = action_buttons(part_names[-1], incoming.locale, ButtonAction.CONFIRM_AGE)
        outgoing = replies.with_buttons(address, outgoing, buttons, reply.menus)
        if reply.replaced_part_names:
            first_part, *other_parts = outgoing
            outgoing = (replace(first_part, is_response=True), *other_parts)
            return TurnResult(outgoing=outgoing, replaced_part_names=reply.replaced_part_names)
        has_controls = bool(reply.menus or buttons)
        menu_turns = [replace(user_turn(incoming), part_names=part_names)] if has_controls else []
        return TurnResult(outgoing=outgoing, unanswered_questions=menu_turns)


def _find_answer_time(turn: StoredTurn, exchange: Exchange) -> datetime:
    answers = exchange.answers if turn.turn.role == "user" else (turn,)
    if not answers:
        raise UserError(translatable("I haven't answered that message."))
    return answers[0].turn.at


def _count_turns_from(question: Turn, turns: Sequence[Turn]) -> int:
    for number, turn in enumerate(reversed(turns), 1):
        if (turn.role, turn.at, turn.text) == (question.role, question.at, question.text):
            return number
    raise UserError(NOT_REMEMBERED_NOTICE)


def _find_shown_version(turn: StoredTurn, exchange: Exchange) -> StoredTurn:
    sent_parts = set(turn.turn.part_names)
    shown_versions = (one for one in exchange.answers if sent_parts & set(one.turn.part_names))
    return next(shown_versions, exchange.answers[-1])
