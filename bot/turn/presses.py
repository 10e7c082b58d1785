"""Handle button presses and reactions: retry, continue, switch version, delete, menu choices."""

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import structlog

from bot.chat.command import (
    ButtonAction,
    ButtonData,
    Command,
    encode_button,
    parse_button,
    parse_command,
)
from bot.chat.incoming import (
    MEMORY_REACTIONS,
    ButtonPress,
    IncomingMessage,
    Reaction,
    ReactionChange,
    WakeReason,
)
from bot.chat.outgoing import OutgoingPart
from bot.chat.session import (
    Exchange,
    Feedback,
    HistoryChange,
    Turn,
    TurnResult,
    build_repeated_question,
)
from bot.commands.answers import BUTTON_GONE_NOTICE, COMMAND_HINTS, pick_speakers
from bot.commands.authority import is_group_author
from bot.commands.memories import back_button, command_for_choice
from bot.commands.request import CommandRequest, CommandResult, OpenQuestion
from bot.errors import PrivateError, UserError
from bot.replying.answer_parts import (
    LongAnswer,
    answer_buttons,
    arrange_parts,
    choose_supported_form,
    select_message_parts,
)
from bot.routing.presets import AGE_CONFIRMATION_KEY, ActiveCharacters
from bot.texts.text import Text, join_texts, supported_language, translatable, translate
from bot.turn.edits import EditHandler
from bot.turn.finishing import TurnServices
from bot.turn.message_groups import MessageGroup
from bot.value_class import value_class

_CONTINUE_PROMPT = translatable("Go on.")
_FORGETTING_NOTICE = translatable(
    "I'm now deleting everything you've said in all channels, the answers to it, and everything"
    " stored about it."
)
_STILL_OPTED_OUT_NOTICE = translatable(
    "I'm still switched off for you. To switch me back on, send /settings me reset."
)
_NOTHING_DELETED_NOTICE = translatable("Nothing was deleted.")
_AGE_CONFIRMED_NOTICE = translatable(
    "Thank you. You can write to me now. /forget me deletes this confirmation."
)


_log = structlog.get_logger(__name__)
_ORIGIN_FIELD_NAMES = (
    *("address", "external_key", "author", "at", "scopes", "author_is_admin", "author_roles"),
    *("locale", "is_private", "is_age_restricted", "in_thread", "thread_title"),
)
_ACTION_BY_REACTION = {Reaction.RETRY: ButtonAction.RETRY, Reaction.DELETE: ButtonAction.DELETE}


ChosenCommand: TypeAlias = tuple[CommandRequest, CommandResult, CommandResult]
"""A menu choice that runs a command: the command, its result (empty if only another menu is
shown), and the content that replaces the menu."""


@value_class
class PressHandler:
    """Computes the effects of presses and reactions, and stores confirmations of age."""

    services: TurnServices
    edit_handler: EditHandler

    async def apply_press(
        self, group: MessageGroup, press: ButtonPress
    ) -> TurnResult | OpenQuestion | ChosenCommand:
        """Return a press's result, or the question or command that it starts; raise `UserError`."""
        button = parse_button(press)
        if button is None or button.action is ButtonAction.STOP:  # its signal stopped the answer
            return TurnResult()
        exchange = await self._find_exchange(press, button)
        if exchange is None:
            return TurnResult()
        active = await self.services.resolver.resolve(press.scopes)
        match button.action:
            case ButtonAction.DELETE:
                return _delete_answer(button, exchange)
            case ButtonAction.VERSION:
                return self._show_version(group, press, button, exchange, active)
            case ButtonAction.CONTINUE:
                prompt = translate(_CONTINUE_PROMPT, supported_language(press.locale))
                message = _to_message(press, prompt)
                answers = [one.turn for one in exchange.answers]
                return OpenQuestion(message, pick_speakers(active, answers))
            case ButtonAction.RETRY:
                return await self._retry(group, press, exchange, active)
            case ButtonAction.FORGET | ButtonAction.KEEP_DATA | ButtonAction.CONFIRM_AGE:
                notice = await self._apply_confirmation(press, button.action, exchange)
                if notice is None:
                    return await self._retry(group, press, exchange, active)
                first_part, *other_parts = self.services.replies.notice_parts(
                    press.address, notice, press.locale
                )
                outgoing = (replace(first_part, is_response=True), *other_parts)
                return TurnResult(outgoing=outgoing, replaced_part_names=exchange.parts)
            case ButtonAction.ENTER_NAME | ButtonAction.ENTER_BIO if not press.values:
                raise UserError(COMMAND_HINTS[button.action])
            case _:
                return await self._run_menu_choice(press, button, exchange, active)

    async def apply_reaction(
        self, group: MessageGroup, reaction: ReactionChange
    ) -> TurnResult | OpenQuestion | ChosenCommand:
        """Treat a reaction as feedback on the answer or as a press of the matching button."""
        services = self.services
        turns = await services.conversations.find_turns(group.claim, [reaction.message_id])
        answer = next((one.turn for one in turns if one.turn.role == "assistant"), None)
        action = _ACTION_BY_REACTION.get(reaction.reaction)
        data = encode_button(action, answer.part_names[-1]) if action and answer else ""
        press = ButtonPress(**_origin_fields(reaction), message_id=reaction.message_id, data=data)
        try:
            if action is not None:
                return TurnResult() if reaction.is_removed else await self.apply_press(group, press)
            if not turns or await services.access.find_refusal(press) is not None:
                return TurnResult()
            if reaction.reaction not in MEMORY_REACTIONS:
                feedback = await self._build_feedback(group, reaction, answer) if answer else None
                return TurnResult(feedback=feedback)
            if not reaction.is_removed:
                await services.commands.memory_handlers.remember_turn(press, turns[-1].turn)
        except UserError as error:  # reactions may be meant for people, so show no refusal
            _log.info("reaction_ignored", by=reaction.author.id, reason=str(error))
        return TurnResult()

    async def _build_feedback(
        self, group: MessageGroup, reaction: ReactionChange, answer: Turn
    ) -> Feedback | None:
        receipts = self.services.commands.context_view.receipts
        matches = await receipts.find_for_answer(group.claim.conversation, answer.at.timestamp())
        receipt_numbers = (one for one, receipt in matches if receipt.answer == answer.text)
        receipt_number = next(receipt_numbers, None)
        if receipt_number is None:  # the answer was edited, or its receipt deleted
            return None
        return Feedback(receipt_number, reaction.author.id, reaction.reaction, reaction.is_removed)

    async def _find_exchange(self, press: ButtonPress, button: ButtonData) -> Exchange | None:
        """Return a button's question and answers; None if a delete button's answer is gone."""
        try:
            return await self.services.buttons.find_changeable_exchange(press, button)
        except UserError as error:
            if button.action is ButtonAction.DELETE and error.text == BUTTON_GONE_NOTICE:
                return None
            name = " ".join(press.author.name.split())
            if press.is_private or not name:
                raise
            text = translatable("{name}: {problem}", name=name, problem=error.text)
            raise UserError(text) from None

    async def _apply_confirmation(
        self, press: ButtonPress, action: ButtonAction, exchange: Exchange
    ) -> Text | None:
        """Apply a confirmation; return its notice, or None to answer the question now."""
        match action:
            case ButtonAction.FORGET:
                has_opted_out = await self.services.deletions.request_person_deletion(press)
                opt_out_notices = [_STILL_OPTED_OUT_NOTICE] if has_opted_out else []
                return join_texts([_FORGETTING_NOTICE, *opt_out_notices], " ")
            case ButtonAction.CONFIRM_AGE:
                person, settings = press.author.id, self.services.access.chat_settings
                await settings.set(person, AGE_CONFIRMATION_KEY, "confirmed", person)
                is_command = parse_command(exchange.question.turn.text) is not None
                return _AGE_CONFIRMED_NOTICE if is_command else None
            case _:
                return _NOTHING_DELETED_NOTICE

    async def _run_menu_choice(
        self, press: ButtonPress, button: ButtonData, exchange: Exchange, active: ActiveCharacters
    ) -> ChosenCommand:
        commands, result, problem = self.services.commands, CommandResult(""), ""
        author = exchange.question.turn.speaker
        if author is not None and is_group_author(author, press.address):
            # The public notice must not name a person who wrote as the group.
            press = replace(press, author=replace(press.author, name=author.name))
        if not exchange.parts:  # private messages are kept only briefly
            raise UserError(BUTTON_GONE_NOTICE)
        message, page = _to_message(press, ""), max(1, button.version_or_page)
        request = CommandRequest(
            Command(""), message, active, (), press.at, part_name=exchange.parts[0], page=page
        )
        is_memory_button = button.action is ButtonAction.MEMORY
        try:
            if is_memory_button:
                command_text = command_for_choice(press.values, exchange.question.turn.text)
            else:
                command_text = await commands.menus.find_command_text(button, press, active.names)
            if (command := parse_command(command_text)) is not None:
                result = await commands.handle(replace(request, command=command))
        except UserError as error:
            has_private_chats = self.services.replies.limits(press.address).has_private_chats
            is_seen_by_others = has_private_chats and not (press.is_private or press.is_ephemeral)
            if isinstance(error, PrivateError) and is_seen_by_others:
                raise
            problem = translatable("⚠ {problem}", problem=error.text)
            if is_memory_button:
                result = CommandResult(problem, buttons=(back_button(request),))
        if is_memory_button:  # the reply of the command is the new content of the menu
            return request, CommandResult(""), replace(result, replaced_part_names=exchange.parts)
        request = replace(request, active=await self.services.resolver.resolve(press.scopes))
        menu = await commands.menus.show_next_menu(button, request)
        text = join_texts([problem, menu.text]) if problem else menu.text
        return request, result, replace(menu, text=text, replaced_part_names=exchange.parts)

    async def _retry(
        self, group: MessageGroup, press: ButtonPress, exchange: Exchange, active: ActiveCharacters
    ) -> TurnResult | OpenQuestion:
        message, earlier_turns = _to_message(press, ""), tuple(exchange.earlier_session.turns)
        repeated_question = build_repeated_question(message, exchange.question.turn, earlier_turns)
        speakers = pick_speakers(active, [one.turn for one in exchange.answers])
        if not exchange.answers:  # the answer failed, so the history has no turns of it
            return OpenQuestion(repeated_question, speakers, exchange.parts, earlier_turns)
        return await self.edit_handler.answer_in_same_messages(
            group, repeated_question, press.at, exchange, active, speakers, {}
        )

    def _show_version(
        self,
        group: MessageGroup,
        press: ButtonPress,
        button: ButtonData,
        exchange: Exchange,
        active: ActiveCharacters,
    ) -> TurnResult:
        address, replies = press.address, self.services.replies
        name_part = partial(group.message.choose_part_name, exchange.parts)
        versions: dict[int, Turn] = {}
        restored_turn_ids: list[int] = []
        parts: list[OutgoingPart] = []
        for answer, all_versions in zip(exchange.answers, exchange.versions, strict=True):
            has_version = 1 <= button.version_or_page <= len(all_versions)
            version = all_versions[button.version_or_page - 1] if has_version else answer
            name_line, face = self.services.find_name_and_face(version.turn, address, active)
            text = name_line + version.turn.text
            first_part_number = len(select_message_parts(one.number for one in parts))
            text_parts = replies.final_parts(address, text, first_part_number, face)
            form: LongAnswer = "parts"
            if version.turn.preset in active.names:
                preferred_form = active.select_members([version.turn.preset])[0].preset.long_answer
                form = choose_supported_form(preferred_form, replies.limits(address))
            arranged_parts = arrange_parts(text_parts, text, form, press.locale, name_part)
            parts += arranged_parts
            if version.id != answer.id:
                part_names = tuple(name_part(one.number) for one in arranged_parts)
                versions[answer.id] = replace(version.turn, part_names=part_names)
                restored_turn_ids.append(version.id)
        if not versions:  # the chosen version is already shown
            return TurnResult()
        change = HistoryChange(new_versions=versions, restored_ids=restored_turn_ids)
        count, last_part_name = len(exchange.versions[-1]), name_part(parts[-1].number)
        buttons = answer_buttons(last_part_name, press.locale, button.version_or_page, count)
        outgoing = replies.with_buttons(address, parts, buttons)
        return TurnResult(outgoing=outgoing, change=change, replaced_part_names=exchange.parts)


def _delete_answer(button: ButtonData, exchange: Exchange) -> TurnResult:
    """Return a result that deletes the answer with the button, but no other character's answer."""
    parts, deleted_versions = exchange.parts, exchange.versions
    for versions in exchange.versions if len(exchange.versions) > 1 else ():
        names = {name for one in versions for name in one.turn.part_names}
        if button.part_name in names:
            parts, deleted_versions = tuple(name for name in parts if name in names), (versions,)
    deleted_turn_ids = [one.id for versions in deleted_versions for one in versions]
    return TurnResult(change=HistoryChange(deleted_ids=deleted_turn_ids), replaced_part_names=parts)


def _to_message(press: ButtonPress, text: str) -> IncomingMessage:
    """Return a message with this text, as if the person had typed it."""
    return IncomingMessage(**_origin_fields(press), message_id=None, text=text, wake=WakeReason.DM)


def _origin_fields(event: ButtonPress | ReactionChange) -> dict[str, Any]:
    """Return an event's fields about its author, time and place."""
    return {name: getattr(event, name) for name in _ORIGIN_FIELD_NAMES}
