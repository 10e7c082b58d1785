"""Answer a question: load the context, then let each character compose, generate and stream."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import REACTION_PART, Limits, MessageContent, OutgoingPart
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Session, Turn, TurnRange, TurnResult
from bot.commands.request import OpenQuestion
from bot.errors import AlreadyNotified, AnswerRefused, BackendError, UserError
from bot.memory.extractor import MemoryExtractor
from bot.ports import Clock
from bot.prompting.compose.card_macros import choose_greeting, make_random_generator
from bot.prompting.presets.preset import Preset
from bot.replying.answer_parts import (
    LongAnswer,
    PartDestinations,
    answer_buttons,
    arrange_parts,
    choose_destinations,
    choose_supported_form,
    explain_skipped_files,
    explain_unread_files,
    fold_thoughts,
    is_unreadable,
    select_message_parts,
)
from bot.replying.generate import describe_ending
from bot.replying.live_reply import LiveReplies, LiveReply, final_parts
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.routing.speakers import MAX_ANSWERS_IN_A_ROW, Dice, select_next_speaker
from bot.runtime.tasks import StopFlag
from bot.texts.text import Text, supported_language, translatable, translate
from bot.tools import reaction_line
from bot.turn.limits.rate_limits import AnswerLimits, NoticeLimiter
from bot.turn.message_groups import MessageGroup
from bot.turn.model_requests import AnswerRequest, ModelRequests
from bot.turn.prompt_inputs import PromptSources, TurnContext

_log = structlog.get_logger(__name__)
_MAX_RECORDED_EDITS = 300
_SECONDS_BETWEEN_SAMPLE_MODEL_NOTICES = 30 * 86400.0
_SECONDS_BETWEEN_ADULT_NOTICES = 600.0
_LAST_LATIN_LETTER = "\u024f"
_MEMORY_NOTICE = translatable(
    "🧠 I remember some of what you say: /memory shows it, /memory forget deletes it, and /settings"
    " me off makes me stop."
)
_SAMPLE_MODEL_NOTICE = translatable(
    "⚠ The small model that comes with Troupe isn't good at this. Whoever runs this bot can set up "
    "a better one with `troupe init`."
)


@dataclass(eq=False)
class AnswerPipeline:
    """Generates the answers of all speakers in turn; each speaker sees the previous answers."""

    sources: PromptSources
    model_requests: ModelRequests
    replies: LiveReplies
    clock: Clock
    limits: AnswerLimits | None
    notice_limiter: NoticeLimiter
    extractor: MemoryExtractor
    dice: Dice = random.random

    async def answer(
        self,
        group: MessageGroup,
        question: OpenQuestion,
        active: ActiveCharacters,
        stop_flag: StopFlag,
        removed_turns: TurnRange | None = None,
        session_override: Session | None = None,
        first_part_number: int = 0,
    ) -> TurnResult:
        """Generate the speakers' answers, then reactions of other characters, until stopped.

        If a speaker fails, the others still answer. If the author is over the rate limit, wait
        first. `removed_turns` are left out of the context, because they are about to be deleted.
        `session_override`, if given, is the context instead of the stored session.

        Raises `AnswerRefused` if the platform rejects the answer, `BackendError` if all speakers
        failed, `UserError` if the author can fix the problem, and `AlreadyNotified` if the author
        was already told why there is no answer.
        """
        message, is_new = question.incoming, removed_turns is None
        may_answer, limit_notice = (
            await self.limits.admit(message, stop_flag) if self.limits else (True, None)
        )
        if not may_answer:
            return self._refusal_result(message, limit_notice, first_part_number, is_new=is_new)
        speakers, active = await self._drop_adult_speakers(question, active)
        context = await self.sources.load_context(
            group, question, active, removed_turns, session_override, first_part_number
        )
        if is_unreadable(message, context.files):
            unread_files_notice = explain_unread_files(context.files.unread_files)
            return self._refusal_result(message, unread_files_notice, first_part_number)
        if is_new and session_override is None and not question.replaced_part_names:
            context = await self._add_greeting(context, len(question.earlier_turns))
        await self._generate_answers(speakers, context, stop_flag)
        has_memory = any(one.memory for one in active.presets)
        if has_memory and await self.extractor.claim_first_notice(message.author.id):
            context.notices.append(_MEMORY_NOTICE)
        if stop_flag.is_requested and not context.turns:
            await self._answer_again_if_shown_before_crash(speakers, context, stop_flag)
        if context.parts and active.first.preset.buttons:
            buttons = answer_buttons(context.part_name(context.parts[-1].number), message.locale)
            context.parts[:] = self.replies.with_buttons(message.address, context.parts, buttons)
        for notice in (limit_notice, *context.notices):
            if notice is not None:
                number = context.next_part_number
                parts = self.replies.notice_parts(message.address, notice, message.locale, number)
                context.parts.extend(parts)
        context.parts.extend(
            OutgoingPart(REACTION_PART, MessageContent(emoji))
            for emoji in context.reactions_by_preset.values()
        )
        replies = context.replies
        context.parts[:] = [  # mark the parts that need no further edit
            replace(one, is_already_shown=True) if any(each.shows(one) for each in replies) else one
            for one in context.parts
        ]
        return context.to_result(was_stopped=stop_flag.is_requested)

    async def _drop_adult_speakers(
        self, question: OpenQuestion, active: ActiveCharacters
    ) -> tuple[tuple[ActivePreset, ...], ActiveCharacters]:
        """Drop adults-only presets that must not answer; raise `UserError` if nobody is left."""
        message, speakers = question.incoming, question.speakers
        try:
            for one in active.presets:
                await self.sources.resolver.check_adults_only(one, message)
        except UserError:
            allowed_speakers = tuple(one for one in speakers if not one.preset.adults_only)
            if allowed_speakers:
                allowed_members = (one for one in active.members if not one.preset.adults_only)
                return allowed_speakers, ActiveCharacters(tuple(allowed_members))
            key, seconds = f"adults:{message.address.channel}", _SECONDS_BETWEEN_ADULT_NOTICES
            if message.wake is None and not await self.notice_limiter.is_due(key, seconds):
                raise AlreadyNotified from None  # not addressed: give the reason rarely
            raise
        return speakers, active

    async def _add_greeting(self, context: TurnContext, gathered_turn_count: int) -> TurnContext:
        active, session = context.active, context.session
        first_part_number = context.first_part_number
        speaker = active.first
        earlier_turns = session.turns[: len(session.turns) - gathered_turn_count]
        if speaker.preset.prompter or not all(turn.is_observed for turn in earlier_turns):
            return context
        rng = make_random_generator(context.part_name(first_part_number))
        greeting = choose_greeting(
            speaker.preset, context.incoming, rng=rng, character_count=len(active.presets)
        )
        if not greeting:
            return context
        check_arguments = (context.incoming, speaker.preset.name, greeting, speaker.preset.provider)
        greeting = await self.model_requests.moderate_greeting(*check_arguments)
        limits = self.replies.limits(context.incoming.address)
        name_line, face = active.build_name_line_and_face(speaker, context.character_names, limits)
        greeting_parts = final_parts(name_line + greeting, limits, first_part_number, face)
        destinations = PartDestinations(first_part_number, max_live_parts=len(greeting_parts))
        greeting_display = self.replies.open_live_reply(
            context.claim, context.message, destinations, face=face
        )
        async with greeting_display as live_greeting:
            live_greeting.final_texts = [one.content.text for one in greeting_parts]
        part_names = tuple(context.part_name(one.number) for one in greeting_parts)
        turn = self._build_turn(greeting, speaker, part_names)
        context.parts.extend(greeting_parts)
        context.replies.append(live_greeting)
        return replace(
            context,
            session=replace(session, turns=(turn, *session.turns)),
            unstored_turns=(turn, *context.unstored_turns),
        )

    async def _generate_answers(
        self, speakers: Sequence[ActivePreset], context: TurnContext, stop_flag: StopFlag
    ) -> None:
        speaker_errors: list[Exception] = []
        queue = list(speakers)
        while queue and len(context.turns) < MAX_ANSWERS_IN_A_ROW and not stop_flag.is_requested:
            speaker = queue.pop(0)
            try:
                await self._generate_answer(speaker, context, stop_flag)
            except (BackendError, UserError) as error:  # other speakers may have other models
                _log.warning("speaker_failed", preset=speaker.preset.name, reason=str(error))
                speaker_errors.append(error)
            except AnswerRefused as error:
                if not any(one.shown_times for one in context.replies):
                    raise
                _log.warning("speaker_refused", preset=speaker.preset.name, reason=str(error))
                return  # the previous speakers' answers were shown and stay
            else:
                queue += () if queue else self._pick_further_speaker(context)
        if not context.turns and not stop_flag.is_requested:
            raise speaker_errors[0]

    async def _answer_again_if_shown_before_crash(
        self, speakers: Sequence[ActivePreset], context: TurnContext, stop_flag: StopFlag
    ) -> None:
        """Ignore a stop if a process showed part of the answer before it crashed; answer again."""
        if stop_flag.is_superseded or stop_flag.is_question_deleted or context.replaced_part_names:
            return
        sent_part_numbers = await self.sources.conversations.list_opened_parts(context.message)
        message_part_numbers = select_message_parts(sent_part_numbers)
        own_part_numbers = {one for one in message_part_numbers if one >= context.first_part_number}
        shown_part_numbers = own_part_numbers.difference(context.started_part_numbers)
        if shown_part_numbers:
            stop_flag.resume_until_filled(max(shown_part_numbers))
            await self._generate_answers(speakers, context, stop_flag)

    def _refusal_result(
        self, message: IncomingMessage, text: Text | None, part_number: int, *, is_new: bool = True
    ) -> TurnResult:
        """Return a result with a notice instead of an answer; raise `UserError` on a retry."""
        if not is_new:
            raise UserError(text) if text is not None else AlreadyNotified
        if text is None:
            return TurnResult()
        parts = self.replies.notice_parts(message.address, text, message.locale, part_number)
        return TurnResult(outgoing=parts)

    async def _generate_answer(
        self, speaker: ActivePreset, context: TurnContext, stop_flag: StopFlag
    ) -> None:
        preset, message = speaker.preset, context.incoming
        limits, active = self.replies.limits(message.address), context.active
        first_part_number = context.next_part_number
        previous_reply = context.replies[-1] if context.replies else None
        name_line, face = active.build_name_line_and_face(speaker, context.character_names, limits)
        form = _long_answer_form(preset, message, limits)
        async with self.replies.open_live_reply(
            context.claim,
            context.message,
            choose_destinations(form, first_part_number, message.locale, context.part_name),
            previous_reply,
            face,
            is_stoppable=preset.buttons,
        ) as live_reply:
            stop_flag.start_part(first_part_number)
            request = AnswerRequest(speaker, name_line, context, live_reply, stop_flag)
            receipt = await self.model_requests.generate(request)
        context.started_part_numbers.extend(live_reply.started_part_numbers)
        if not receipt.answer:  # stopped before the first word
            return
        emoji = context.reactions_by_preset.get(preset.name)
        if emoji and receipt.answer == reaction_line(emoji):  # the answer is only a reaction
            context.turns.append(self._build_turn(receipt.answer, speaker, ()))
            context.receipts.append(_with_edit_times(receipt, live_reply, message))
            return
        text = name_line + receipt.answer + _ending_text(receipt, message.locale)
        text += _unread_files_notice(context)
        text_parts = final_parts(text, limits, first_part_number, face)
        parts = arrange_parts(text_parts, text, form, message.locale, context.part_name)
        if preset.thoughts == "folded":
            may_add_message = not active.is_group
            parts = fold_thoughts(parts, receipt.thoughts, limits, may_add_message=may_add_message)
        context.parts.extend(parts)
        contents = (one.content for one in parts if one.file is None)
        live_reply.final_texts = [one.text for one in contents if one.text]
        context.replies.append(live_reply)
        part_names = tuple(context.part_name(one.number) for one in parts)
        context.turns.append(self._build_turn(receipt.answer, speaker, part_names))
        context.receipts.append(_with_edit_times(receipt, live_reply, message))
        if await self._should_warn_of_weak_model(receipt, context):
            context.notices.append(_SAMPLE_MODEL_NOTICE)

    async def _should_warn_of_weak_model(self, receipt: Receipt, context: TurnContext) -> bool:
        """Return whether to warn this chat that the sample model is too weak for it."""
        backend = self.model_requests.backends.get(receipt.provider)
        if backend is None or not backend.is_sample_model(receipt.prompt.model):
            return False
        is_repetitive = receipt.reason is FinishReason.REPETITION
        if not (is_repetitive or _is_mostly_non_latin(context.incoming.text)):
            return False
        notice_name = f"sample model {context.claim.conversation}"
        return await self.notice_limiter.is_due(notice_name, _SECONDS_BETWEEN_SAMPLE_MODEL_NOTICES)

    def _pick_further_speaker(self, context: TurnContext) -> tuple[ActivePreset, ...]:
        newest_speaker_name = context.turns[-1].preset if context.turns else None
        if not context.active.is_group and newest_speaker_name == context.active.first.preset.name:
            return ()
        candidates = select_next_speaker(
            context.active.presets,
            context.turns,
            [*context.session.turns, *context.turns],
            dice=self.dice,
            now=self.clock.utc_now(),
        )
        return context.active.select_members([one.preset for one in candidates if one.chosen])

    def _build_turn(self, text: str, speaker: ActivePreset, part_names: tuple[str, ...]) -> Turn:
        name, version, now = speaker.preset.name, speaker.version, self.clock.utc_now()
        return Turn("assistant", text, None, now, name, version, part_names=part_names)


def _is_mostly_non_latin(text: str) -> bool:
    """Return whether most letters are not Latin, so that the sample model cannot read them."""
    letters = [char for char in text if char.isalpha()]
    return sum(char > _LAST_LATIN_LETTER for char in letters) * 2 > len(letters)


def _with_edit_times(receipt: Receipt, live_reply: LiveReply, message: IncomingMessage) -> Receipt:
    if not live_reply.shown_times:
        return receipt
    received_at = message.at.timestamp()
    edits = tuple(max(0.0, at - received_at) for at in live_reply.shown_times[:_MAX_RECORDED_EDITS])
    return replace(receipt, timings=replace(receipt.timings, edits=edits))


def _long_answer_form(preset: Preset, message: IncomingMessage, limits: Limits) -> LongAnswer:
    """Return the preset's form for long answers, or "parts" where a thread cannot be created."""
    if preset.long_answer == "thread" and (message.in_thread or message.is_private):
        return "parts"
    return choose_supported_form(preset.long_answer, limits)


def _unread_files_notice(context: TurnContext) -> str:
    notice = None if context.turns else explain_skipped_files(context.files)
    return f"\n\n{translate(notice, supported_language(context.incoming.locale))}" if notice else ""


def _ending_text(receipt: Receipt, locale: str | None) -> str:
    ending = None if receipt.is_withheld else describe_ending(receipt.reason, receipt.tool_calls)
    return translate(ending, supported_language(locale)) if ending else ""
