"""Request an answer from a preset's models within the budgets, and record its cost."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import structlog

from bot.chat.incoming import ChatJoin, IncomingMessage, Request
from bot.chat.prompt import FinishReason, RateLimitWait, Waiting
from bot.chat.receipt import Receipt
from bot.chat.session import BANNED_WORDS_KEY, OWNER_SEPARATOR
from bot.errors import BackendError, BudgetUsedUp, ContextExceeded, ToolResultsTooLong, UserError
from bot.markup.graphemes import is_visible
from bot.ports import Backend, Clock
from bot.prompting.compose.background import split_observed_turns
from bot.prompting.compose.card_macros import build_reply_macros, make_random_generator
from bot.prompting.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.prompting.presets.regex_scripts import run_scripts
from bot.prompting.text.tokens import get_counter_for_model
from bot.replying.answer_check import AnswerCheck, parse_banned_words, translate_refusal_sentence
from bot.replying.generate import (
    GeneratedAnswer,
    VisibleTokenLimit,
    build_receipt,
    generate_answer,
    log_steps_on_error,
)
from bot.replying.live_reply import LiveReply
from bot.routing.decide import MODEL_NOT_ALLOWED, AccessRules
from bot.routing.presets import INSTALLATION, ActivePreset
from bot.runtime.plugins import HOOKS
from bot.runtime.tasks import StopFlag
from bot.texts.text import translatable
from bot.tools import MAX_CALL_AND_RESULT_TOKENS, reaction_line
from bot.turn.limits.refusals import OperatorNotices
from bot.turn.limits.slots import ProviderSlots, Urgency
from bot.turn.limits.spending import Spending, list_usages
from bot.turn.prompt_inputs import AnswerTools, PromptSources, TurnContext
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_SLOW_START_SECONDS = 10.0  # the notice says that the model is slow to start
_ONLY_REASONING_NOTICE = translatable(
    "The model spent its whole answer on thinking. Please try again, or ask for something shorter."
)
_LIMIT_SPENT_NOTICE = translatable(
    "The model spent its whole output limit on thinking. The bot's operator can raise or remove"
    " max_output_tokens in the preset, give the model a larger context, or turn its thinking off."
)
_FILTERED_NOTICE = translatable(
    "The model's provider blocked its answer (content filter). Please try rephrasing your message."
)
_EMPTY_ANSWER_NOTICE = translatable(
    "The model gave an empty answer. Please try again or rephrase your message."
)


class _LimitSpentOnThinking(BackendError):
    """The model used all its output tokens for thinking, so the answer is empty."""


@value_class
class AnswerRequest:
    """A request to generate and show one character's answer."""

    speaker: ActivePreset
    name_line: str
    """The character's name line, shown before the text; may be empty."""
    context: TurnContext
    live_reply: LiveReply
    stop_flag: StopFlag
    has_fallback: bool = False

    def with_preset(self, preset: Preset) -> "AnswerRequest":
        if preset is self.speaker.preset:
            return self
        return replace(self, speaker=replace(self.speaker, preset=preset))


@dataclass(eq=False)
class ModelRequests:
    """Requests answers from a preset's model, its fallbacks, or a cheaper model."""

    sources: PromptSources
    backends: Mapping[str, Backend]
    clock: Clock
    spending: Spending
    tools: AnswerTools
    operator_notices: OperatorNotices
    slots: ProviderSlots
    access: AccessRules
    withholds_unchecked_answers: bool = False
    """Whether to withhold an answer when the moderation request fails."""

    def __post_init__(self) -> None:
        self._thinking_models: set[tuple[str, str]] = set()
        """Pairs of provider and model that were seen thinking; no output limit is sent to them."""

    async def generate(self, request: AnswerRequest) -> Receipt:
        """Request an answer from the preset's model, or a cheaper model if a budget is used up.

        Returns the answer's receipt. The answer is empty if it was stopped before the first word.
        Raises `BackendError` if all models failed, and `UserError` if the author can fix the
        problem or is over budget.
        """
        if not await self.access.may_use(request.context.incoming, "model"):
            request = request.with_preset(self._with_next_model(request.speaker.preset))
        try:
            return await self._try_models(request)
        except BudgetUsedUp:
            substitute = self.spending.with_cheaper_model(request.speaker.preset)
            if substitute is None:
                raise
            _log.info("cheaper_model_used", preset=substitute.name, provider=substitute.provider)
            receipt = await self._try_models(request.with_preset(substitute))
        context = request.context
        if notice := await self.spending.find_cheaper_model_notice(context.incoming):
            context.notices.append(notice)
        return receipt

    def _with_next_model(self, preset: Preset) -> Preset:
        """Return the preset with its next model, for people who may not use its first model."""
        fallbacks = preset.self_and_fallbacks[1:]
        next_preset = fallbacks[0] if fallbacks else self.spending.with_cheaper_model(preset)
        if next_preset is None:
            raise UserError(MODEL_NOT_ALLOWED)
        return next_preset.model_copy(update={"fallbacks": preset.fallbacks[1:]})

    async def _try_models(self, request: AnswerRequest) -> Receipt:
        preset, context = request.speaker.preset, request.context
        *first_requests, last_request = (
            request.with_preset(one) for one in preset.self_and_fallbacks
        )
        failures: list[BackendError] = []
        for one in first_requests:
            try:
                receipt = await self._generate_with_retry(replace(one, has_fallback=True))
                break
            except BackendError as error:
                name, provider = one.speaker.preset.name, one.speaker.preset.provider
                _log.warning("fallback_used", preset=name, provider=provider, reason=str(error))
                failures.append(error)
        else:
            receipt = await self._generate_with_retry(last_request)
        if receipt.answer and failures:
            notice = await self.operator_notices.notify_about_fallback(
                preset, failures[0], context.incoming
            )
            if notice is not None:
                context.notices.append(notice)
        return receipt

    async def _generate_with_retry(self, request: AnswerRequest) -> Receipt:
        """Request an answer; after a token limit, retry without it or with a shorter prompt."""
        preset = request.speaker.preset
        try:
            return await self._generate_once(request)
        except _LimitSpentOnThinking:
            _log.info("output_limit_spent_on_thinking", preset=preset.name)
        except (ContextExceeded, ToolResultsTooLong) as error:
            _log.info("prompt_too_long", preset=preset.name, reason=str(error))
        return await self._generate_once(request)

    async def _generate_once(self, request: AnswerRequest) -> Receipt:
        preset, context, live_reply = request.speaker.preset, request.context, request.live_reply
        message, stop, backend = context.incoming, request.stop_flag, self.backends[preset.provider]
        visible_limit = await self._find_visible_limit(preset)
        if visible_limit is not None:
            preset = preset.without_output_limit
        started_at = self.clock.monotonic()
        may_use_tools = not preset.calls_tools or await self.access.may_use(message, "tools")
        tools = await self.tools.create_toolbox(preset, backend, context) if may_use_tools else None
        fitted_prompt = await self.sources.fit_prompt(preset, context, tools.specs if tools else ())
        compose_seconds = self.clock.monotonic() - started_at
        shows_live = preset.stream and not (context.replaced_part_names or preset.regex_scripts)
        name_line, lane = request.name_line, message.address.lane
        show = _prepend_name_line(name_line, live_reply.feed if shows_live else _ignore_text)
        answer_check = await self.create_check(message.scopes, preset.provider)
        replace_shown_text = (
            (lambda text: live_reply.replace(name_line + text)) if shows_live else _ignore_text
        )
        show_wait = partial(_show_wait, stop, None if context.replaced_part_names else live_reply)
        urgency = Urgency.UNADDRESSED if message.wake is None else Urgency.QUESTION
        token_limit = fitted_prompt.tokens + (MAX_CALL_AND_RESULT_TOKENS if tools else 0)
        cost = self.spending.reserve_cost(preset, message, fitted_prompt.prompt, token_limit)
        async with cost as reservation:
            slot = self.slots.hold(preset.provider, stop, show_wait, chat=lane, urgency=urgency)
            async with slot:
                prompt = replace(reservation.prompt, has_fallback=request.has_fallback)
                queued_seconds = self.clock.now() - message.at.timestamp()
                step_logging = log_steps_on_error(compose_seconds, fitted_prompt.tokens, self.clock)
                with step_logging, ExitStack() as stack:
                    if not context.replaced_part_names and message.wake is not None:
                        show_notice = live_reply.show_slow_start
                        stack.callback(self.clock.call_later(_SLOW_START_SECONDS, show_notice))
                    answer = await generate_answer(
                        *(backend, prompt, show, show_wait, self.clock, stop),
                        partial(self.spending.reserve_continuation, reservation),
                        *(tools, visible_limit, preset.provider, replace_shown_text),
                        answer_check if shows_live else None,
                    )
                    answer = _apply_regex_scripts(answer, preset, message)
            usages = list_usages(answer, fitted_prompt.tokens)
            charge = self.spending.record_actual_cost(reservation, preset, usages)
        if answer.thoughts:
            self._thinking_models.add((preset.provider, preset.model))
        if answer_check is not None and is_visible(answer.text):
            answer = await _apply_answer_check(answer_check, answer, preset, message)
        if preset.name in context.reactions_by_preset and not is_visible(answer.text):
            answer = replace(answer, text=reaction_line(context.reactions_by_preset[preset.name]))
        if not stop.is_requested:
            _raise_if_empty(answer, preset, sent_output_limit=preset.output_limit)
        self._request_summary_if_cut(preset, context, fitted_prompt)
        fitted_prompt = replace(fitted_prompt, prompt=reservation.prompt)
        receipt = build_receipt(
            *(answer, fitted_prompt, preset, request.speaker.version, charge, message.scopes),
            queued_seconds=max(compose_seconds, queued_seconds),
            compose_seconds=compose_seconds,
            received_at=message.at.timestamp(),
        )
        if answer_check is None:
            return receipt
        return replace(receipt, check=answer_check.notes_text, is_withheld=answer_check.is_refused)

    async def moderate_greeting(
        self, event: Request | ChatJoin, preset: str, greeting: str, provider: str = ""
    ) -> str:
        """Return a greeting, checked by `check_text` if its character was created in a chat."""
        if OWNER_SEPARATOR not in preset:  # operators' greetings need no check
            return greeting
        return await self.check_text(event, provider, greeting)

    async def check_text(self, event: Request | ChatJoin, provider: str, text: str) -> str:
        """Pass a text through plug-ins; return the result, or a refusal if it breaks a rule."""
        text_check = await self.create_check(event.scopes, provider)
        if text_check is None:
            return text
        text = await text_check.apply_hooks(text)
        return translate_refusal_sentence(event.locale) if await text_check.refuses(text) else text

    async def create_check(self, scopes: Sequence[str], provider: str) -> AnswerCheck | None:
        """Create the check for a provider's answers; return None if answers are not checked."""
        settings = self.access.chat_settings
        setting = await settings.resolve((*scopes, INSTALLATION), BANNED_WORDS_KEY)
        provider_ids = [one for one in (provider, *self.backends) if one in self.backends]
        moderator_id = next((one for one in provider_ids if self.backends[one].can_moderate), "")
        banned_words = parse_banned_words(setting.value) if setting is not None else None
        if banned_words is None and not (moderator_id or HOOKS["check_answer"]):
            return None
        backend = self.backends.get(moderator_id)
        return AnswerCheck(banned_words, moderator_id, backend, self.withholds_unchecked_answers)

    async def _find_visible_limit(self, preset: Preset) -> VisibleTokenLimit | None:
        token_limit = preset.output_limit
        if token_limit is None or (preset.provider, preset.model) not in self._thinking_models:
            return None
        token_counter = get_counter_for_model(preset.model)
        await token_counter.load()
        return VisibleTokenLimit(token_limit, token_counter)

    def _request_summary_if_cut(
        self, preset: Preset, context: TurnContext, fitted_prompt: FittedPrompt
    ) -> None:
        if any(one.section == "history" for one in fitted_prompt.dropped_items):
            _, observed_turns = split_observed_turns(context.session.turns)
            count = len(observed_turns) + sum(
                len(unit.messages) for unit in fitted_prompt.draft.history
            )
            conversation = context.claim.conversation
            self.sources.summarizer.request_summary(preset, conversation, count, context.incoming)


def _prepend_name_line(name_line: str, show_text: Callable[[str], None]) -> Callable[[str], None]:
    unshown_lines = [name_line]

    def show_with_name_line(text: str) -> None:
        show_text("".join([*unshown_lines, text]) if text else "")
        if text:
            unshown_lines.clear()

    return show_with_name_line if name_line else show_text


def _apply_regex_scripts(
    answer: GeneratedAnswer, preset: Preset, message: IncomingMessage
) -> GeneratedAnswer:
    """Return the answer with the preset's regex scripts applied, unless the result is empty."""
    if not preset.regex_scripts:
        return answer
    expand_macros = build_reply_macros(preset, message, make_random_generator(answer.text)).expand
    text = run_scripts(preset.regex_scripts, answer.text, expand_macros).strip()
    return replace(answer, text=text or answer.text)


async def _apply_answer_check(
    answer_check: AnswerCheck, answer: GeneratedAnswer, preset: Preset, message: IncomingMessage
) -> GeneratedAnswer:
    """Pass an answer through plug-ins; return the result, or a refusal if it breaks a rule."""
    shown_texts = [answer.text, answer.thoughts if preset.thoughts == "folded" else ""]
    text, thoughts = shown_texts = [await answer_check.apply_hooks(one) for one in shown_texts]
    if await answer_check.refuses("\n\n".join(shown_texts)):
        refusal = replace(answer, text=translate_refusal_sentence(message.locale), thoughts="")
        return replace(refusal, reason=FinishReason.FILTERED)
    return replace(answer, text=text, thoughts=thoughts or answer.thoughts)


def _raise_if_empty(answer: GeneratedAnswer, preset: Preset, sent_output_limit: int | None) -> None:
    if not is_visible(answer.text):
        if answer.thoughts and answer.reason is FinishReason.LENGTH:
            problem = "the model spent all its output tokens on thinking; see max_output_tokens"
            error_class = BackendError if sent_output_limit is None else _LimitSpentOnThinking
            raise error_class(problem, notice=_LIMIT_SPENT_NOTICE)
        notice = _ONLY_REASONING_NOTICE if answer.thoughts else _EMPTY_ANSWER_NOTICE
        if answer.reason is FinishReason.FILTERED:
            notice = _FILTERED_NOTICE
        raise BackendError("the answer is empty", notice=notice)
    if answer.reason in {FinishReason.LENGTH, FinishReason.REPETITION}:
        _log.info("answer_cut", preset=preset.name, reason=answer.reason)


def _show_wait(stop_flag: StopFlag, live_reply: LiveReply | None, waiting: Waiting) -> None:
    """Show why the answer is waiting, and forbid interrupting a wait for a rate limit."""
    if isinstance(waiting, RateLimitWait):
        stop_flag.forbid_superseding()
    if live_reply is not None:
        live_reply.show_wait(waiting)


def _ignore_text(_partial_text: object) -> None:
    """Do nothing with partial text, because only the complete answer is shown."""
