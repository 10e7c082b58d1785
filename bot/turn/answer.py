"""Answer one message: load what was said, then compose, generate and stream for each speaker."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from bot.chat.incoming import Said
from bot.chat.outgoing import Face
from bot.chat.prompt import FinishReason, QueuePosition
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage, Session, Turn, TurnRange, TurnResult
from bot.commands.notes.admin_notes import AdminNotes
from bot.errors import BackendError, BudgetUsedUp, ToldAlready, UserError
from bot.ports import Backend, Clock
from bot.prompting.compose.background import split_observed
from bot.prompting.draft.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.replying.answer_buttons import answer_buttons
from bot.replying.folded_thoughts import fold_thoughts
from bot.replying.generate import (
    GeneratedAnswer,
    WaitedSeconds,
    build_receipt,
    end_mark,
    generate_answer,
    logged_steps,
)
from bot.replying.live_replies import LiveReplies
from bot.replying.live_reply import LiveReply
from bot.replying.long_answers import LongAnswer, find_places, shorten, supported_form
from bot.replying.media_notice import explain_unread, is_unreadable
from bot.replying.stop_flag import StopFlag
from bot.replying.tool_rounds import MAX_TOOL_TOKENS, used_tools
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.routing.speaker_selection import MAX_ANSWERS_IN_A_ROW, select_reaction
from bot.routing.wake_rules import Dice
from bot.texts.text import Text, joined, language_of, translatable, translate
from bot.turn.limits.answer_limits import Admission, AnswerLimits
from bot.turn.limits.fallback_notes import FallbackNotes
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.rare_notices import RareNotices
from bot.turn.limits.slot_queue import Urgency
from bot.turn.limits.spending import Spending, usages_of
from bot.turn.prompt_sources import PromptSources, TurnContext
from bot.turn.tools.answer_tools import AnswerTools

_log = structlog.get_logger(__name__)
_ONLY_REASONING = translatable(
    "The model used its whole answer for thinking. Please try again, or ask for something shorter."
)
_FILTERED = translatable(
    "The model's provider blocked its answer (content filter). Please try other words."
)
_EMPTY = translatable("The model gave an empty answer. Please try again or rephrase your message.")


class AnswerPipeline:
    """Lets characters answer one after the other; each reads the answers before its own."""

    def __init__(
        self,
        sources: PromptSources,
        backends: Mapping[str, Backend],
        replies: LiveReplies,
        clock: Clock,
        dice: Dice = random.random,
        limits: AnswerLimits | None = None,
        slots: ProviderSlots | None = None,
        spending: Spending | None = None,
        notices: RareNotices | None = None,
        tools: AnswerTools | None = None,
        admin_notes: AdminNotes | None = None,
    ) -> None:
        self._sources = sources
        self._backends = backends
        self._replies = replies
        self._clock = clock
        self._dice = dice
        self._limits = limits
        self._slots = slots
        self._spending = spending or Spending({}, clock)
        self._tools = tools or AnswerTools(
            sources.conversations, sources.retrieve_stories, clock, dice
        )
        self._fallback_notes = FallbackNotes(notices or RareNotices(), admin_notes)

    async def answer(
        self,
        claim: Claim,
        message: InboxMessage,
        said: Said,
        active: ActiveCharacters,
        speakers: Sequence[ActivePreset],
        stop: StopFlag,
        removed: TurnRange | None = None,
        before: Session | None = None,
        in_place_of: Sequence[str] = (),
        gathered: Sequence[Turn] = (),
        first_part: int = 0,
    ) -> TurnResult:
        """Let the speakers answer, then whoever reacts to that, until they are stopped.

        A speaker that fails is skipped if another one answers. Who asks for too much waits first.

        Args:
            claim: the conversation.
            message: the row of the inbox that it is answered for.
            said: what is answered.
            active: the characters of the channel.
            speakers: who answers, in this order.
            stop: keeps what was said when it is requested.
            removed: turns that nobody reads any more, because they are about to be deleted.
            before: the only turns that the speakers know; None: those of the current session.
            in_place_of: names of parts whose messages the answer gets; it is shown when it is
                complete then.
            gathered: what was said before and is not stored yet.
            first_part: the number of its first part.

        Returns:
            The turns of the speakers, without that of the message; none if they were stopped before
            their first word.

        Raises:
            BackendError: nobody answered; what the first speaker failed with.
            UserError: the same, where the author can fix it, or there were too many messages.
            ToldAlready: there were too many, and the author knows.
        """
        admission = await self._limits.admit(said, stop) if self._limits else Admission()
        if admission.is_refused:
            is_repetition = removed is not None
            return self._refuse(said, admission.notice, first_part, is_repetition=is_repetition)
        context = await self._sources.load(
            *(claim, message, said, active, speakers, removed, before),
            *(in_place_of, gathered, first_part),
        )
        if is_unreadable(said, context.files):
            unread = explain_unread(context.files.unread)
            return self._refuse(said, unread, first_part, is_repetition=False)
        await self._let_speak(speakers, context, stop)
        if context.parts and active.first.preset.buttons:
            self._add_buttons(context)
        self._tell_notices(context, admission)
        _mark_shown(context)
        return context.to_result(was_stopped=stop.requested)

    async def _let_speak(
        self, speakers: Sequence[ActivePreset], context: TurnContext, stop: StopFlag
    ) -> None:
        failures: list[Exception] = []
        queue = list(speakers)
        while queue and len(context.turns) < MAX_ANSWERS_IN_A_ROW and not stop.requested:
            speaker = queue.pop(0)
            try:
                await self._speak(speaker, context, stop)
            except (BackendError, UserError) as error:  # others have another model or budget
                _log.warning("speaker_failed", preset=speaker.preset.name, reason=str(error))
                failures.append(error)
            else:
                queue += () if queue else self._reaction(context)
        if not context.turns and not stop.requested:
            raise failures[0]

    def _refuse(
        self, said: Said, notice: Text | None, first_part: int, *, is_repetition: bool
    ) -> TurnResult:
        """Keep a message without an answer.

        Raises:
            UserError: it was answered before, and its answer stays.
            ToldAlready: the same, and its author knows why.
        """
        if is_repetition:
            raise UserError(notice) if notice is not None else ToldAlready
        shown = translate(notice, language_of(said.locale)) if notice is not None else ""
        return TurnResult(outgoing=self._replies.final_parts(said.address, shown, first_part))

    def _add_buttons(self, context: TurnContext) -> None:
        name = context.part_name(context.parts[-1].part)
        buttons = answer_buttons(name, context.said.locale)
        address = context.said.address
        context.parts[:] = self._replies.with_buttons(address, context.parts, buttons)

    def _tell_notices(self, context: TurnContext, admission: Admission) -> None:
        if context.files.unread:
            self._tell(context, explain_unread(context.files.unread))
        for notice in (admission.notice, *context.notices):
            if notice is not None:
                self._tell(context, notice)

    def _tell(self, context: TurnContext, notice: Text) -> None:
        """Append a notice of the service to what is sent."""
        shown = translate(notice, language_of(context.said.locale))
        address = context.said.address
        context.parts.extend(self._replies.final_parts(address, shown, context.next_part))

    async def _speak(self, speaker: ActivePreset, context: TurnContext, stop: StopFlag) -> None:
        """Let one character answer, live, and append its answer to the context."""
        preset, address = speaker.preset, context.said.address
        earlier = context.shown[-1] if context.shown else None
        face = self._face(speaker, context)
        form = self._form(preset, context)
        async with self._replies.live(
            context.claim,
            context.message,
            find_places(form, context.next_part, context.said.locale, context.part_name),
            earlier,
            face,
            can_stop=preset.buttons,
        ) as live_reply:
            receipt = await self._generate_with_fallbacks(speaker, context, live_reply, stop)
        context.opened.extend(live_reply.opened)
        if not receipt.answer:  # it was stopped before its first word
            return
        mark = translate(
            joined([end_mark(receipt.reason), used_tools(receipt.tool_calls)], ""),
            language_of(context.said.locale),
        )
        text = self._speaker_line(speaker, context) + receipt.answer + mark
        whole = self._replies.final_parts(address, text, context.next_part, face)
        parts = shorten(whole, text, form, context.said.locale, context.part_name)
        if preset.thoughts == "folded":
            limits, is_group = self._replies.limits(address), context.active.is_group
            parts = fold_thoughts(parts, receipt.thoughts, limits, may_add_message=not is_group)
        context.parts.extend(parts)
        live_reply.set_final([one.text for one in parts if one.text and one.file is None])
        context.shown.append(live_reply)
        sent_as = tuple(context.part_name(one.part) for one in parts)
        context.turns.append(
            Turn(
                "assistant",
                receipt.answer,
                None,
                self._now(),
                preset.name,
                speaker.version,
                sent_as=sent_as,
            )
        )
        context.receipts.append(receipt)

    async def _generate_with_fallbacks(
        self, speaker: ActivePreset, context: TurnContext, live_reply: LiveReply, stop: StopFlag
    ) -> Receipt:
        """Ask the preset's model, or a cheaper one where a budget is used up for it."""
        try:
            return await self._try_models(speaker, context, live_reply, stop)
        except BudgetUsedUp:
            cheaper = self._spending.cheaper(speaker.preset)
            if cheaper is None:
                raise
            _log.info("cheaper_model", preset=cheaper.name, provider=cheaper.provider)
            speaker = replace(speaker, preset=cheaper)
            receipt = await self._try_models(speaker, context, live_reply, stop)
        if notice := await self._spending.notice_of_cheaper(context.said):
            context.notices.append(notice)
        return receipt

    async def _try_models(
        self, speaker: ActivePreset, context: TurnContext, live_reply: LiveReply, stop: StopFlag
    ) -> Receipt:
        """Ask the preset's model; each fallback is tried when the one before gave no answer."""
        *others, last = (replace(speaker, preset=one) for one in speaker.preset.with_fallbacks)
        failures: list[BackendError] = []
        for one in others:
            try:
                receipt = await self._generate(one, context, live_reply, stop, has_fallback=True)
                break
            except BackendError as error:
                provider, reason = one.preset.provider, str(error)
                _log.warning("fell_back", preset=one.preset.name, provider=provider, reason=reason)
                failures.append(error)
        else:
            receipt = await self._generate(last, context, live_reply, stop)
        if not receipt.answer:
            return receipt
        if not failures:
            self._fallback_notes.end_outage(speaker.preset)
        elif note := await self._fallback_notes.tell(speaker.preset, failures[0], context.said):
            context.notices.append(note)
        return receipt

    async def _generate(
        self,
        speaker: ActivePreset,
        context: TurnContext,
        live_reply: LiveReply,
        stop: StopFlag,
        *,
        has_fallback: bool = False,
    ) -> Receipt:
        preset, backend = speaker.preset, self._backends[speaker.preset.provider]
        begun_at = self._clock.monotonic()
        fitted = await self._sources.fit(preset, context)
        composed = self._clock.monotonic() - begun_at
        is_shown = preset.stream and not context.in_place_of
        show = prefix_speaker_line(
            self._speaker_line(speaker, context), live_reply.feed if is_shown else _discard
        )
        show_position = _discard if context.in_place_of else live_reply.show_queue_position
        tools = self._tools.for_answer(preset, backend, context)
        most_tokens = fitted.tokens + (MAX_TOOL_TOKENS if tools else 0)
        async with self._spending.reserved(
            preset, context.said, fitted.prompt, most_tokens
        ) as reservation:
            async with self._slot(preset.provider, context.said, stop, show_position):
                prompt = replace(reservation.prompt, has_fallback=has_fallback)
                queued = self._clock.now() - context.said.at.timestamp()
                waited = WaitedSeconds(max(composed, queued), composed)
                with logged_steps(waited, fitted.tokens, self._clock):
                    answer = await generate_answer(
                        *(backend, prompt, show, show_position, self._clock, stop),
                        partial(self._spending.reserve_continuation, reservation),
                        tools,
                    )
            usages = usages_of(answer, fitted.tokens)
            charge = self._spending.charged(reservation, preset, usages)
        if not stop.requested:
            _check(answer, preset)
        self._request_summary(preset, context, fitted)
        fitted = replace(fitted, prompt=reservation.prompt)
        scopes = context.said.scopes
        return build_receipt(answer, fitted, preset, speaker.version, waited, charge, scopes)

    def _slot(
        self,
        provider: str,
        said: Said,
        stop: StopFlag,
        show_position: Callable[[QueuePosition], None],
    ) -> AbstractAsyncContextManager[None]:
        if self._slots is None:
            return nullcontext()
        urgency = Urgency.REACTION if said.wake is None else Urgency.QUESTION
        return self._slots.hold(
            provider, stop, show_position, chat=said.address.lane, urgency=urgency
        )

    def _face(self, speaker: ActivePreset, context: TurnContext) -> Face | None:
        limits = self._replies.limits(context.said.address)
        return context.active.face(speaker, context.character_names, limits)

    def _form(self, preset: Preset, context: TurnContext) -> LongAnswer:
        """Return how a long answer is sent; nobody opens a thread alone or inside of a thread."""
        said = context.said
        if preset.long_answer == "thread" and (said.in_thread or said.is_private):
            return "parts"
        return supported_form(preset.long_answer, self._replies.limits(said.address))

    def _speaker_line(self, speaker: ActivePreset, context: TurnContext) -> str:
        limits = self._replies.limits(context.said.address)
        return context.active.speaker_line(speaker, context.character_names, limits)

    def _request_summary(self, preset: Preset, context: TurnContext, fitted: FittedPrompt) -> None:
        """Have the turns summarized that no longer fit into the history."""
        if any(one.section == "history" for one in fitted.dropped):
            _, observed = split_observed(context.session.turns)
            kept = len(observed) + sum(len(unit.messages) for unit in fitted.draft.history)
            conversation = context.claim.conversation
            self._sources.summarizer.request(preset, conversation, kept, context.said)

    def _reaction(self, context: TurnContext) -> tuple[ActivePreset, ...]:
        candidates = select_reaction(
            context.active.presets,
            context.turns,
            [*context.session.turns, *context.turns],
            dice=self._dice,
            now=self._now(),
        )
        return context.active.pick([one.preset for one in candidates if one.chosen])

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _mark_shown(context: TurnContext) -> None:
    """Mark the parts that need no edit any more."""
    context.parts[:] = [
        replace(one, is_shown=any(reply.shows(one) for reply in context.shown))
        for one in context.parts
    ]


def prefix_speaker_line(line: str, show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `show` that puts the line in front of the first text."""
    pending = [line]

    def show_with_line(text: str) -> None:
        show("".join([*pending, text]) if text else "")
        if text:
            pending.clear()

    return show_with_line if line else show


def _check(answer: GeneratedAnswer, preset: Preset) -> None:
    if not answer.text:
        notice = _ONLY_REASONING if answer.thoughts else _EMPTY
        if answer.reason is FinishReason.FILTERED:
            notice = _FILTERED
        raise BackendError("an empty answer", notice=notice)
    if answer.reason in {FinishReason.LENGTH, FinishReason.REPETITION}:
        _log.info("answer_cut", preset=preset.name, reason=answer.reason)


def _discard(_shown: object) -> None:
    """Show nothing: the answer is sent whole."""
