"""Send requests to models for the operator: they count toward budgets, but change no history."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from bot.chat.answers import StoredAnswer
from bot.chat.incoming import IncomingMessage, Person, parse_address
from bot.chat.prompt import Message, Prompt, Usage
from bot.chat.receipt import Receipt, Timings
from bot.chat.usage import AnswerCharge
from bot.console.prompt_preview import DraftComposer
from bot.errors import BackendUnavailable, UserError
from bot.ports import Backend, Clock
from bot.prompting.compose.compose import build_bare_prompt, choose_template
from bot.prompting.presets.preset import Preset
from bot.replying.generate import GeneratedAnswer, generate_answer
from bot.runtime.tasks import StopFlag
from bot.storage.reports import AnswerLog
from bot.storage.usage import UsageLog
from bot.texts.text import translatable
from bot.turn.limits.slots import ProviderSlots, Urgency
from bot.turn.limits.spending import Spending, list_usages
from bot.value_class import value_class

OPERATOR = Person("web:console", "console")
"""The person to whom costs and choices of presets in the console are attributed, whoever is logged
in; only the audit log names the actual caller."""


@value_class
class OperatorRequests:
    """Sends requests that do not come from a chat message."""

    backends: Mapping[str, Backend]
    spending: Spending
    slots: ProviderSlots
    log: UsageLog
    clock: Clock

    async def send(self, preset: Preset, prompt: Prompt, conversation: str) -> GeneratedAnswer:
        """Return the model's answer; raises `BackendError`, or `UserError` if over budget."""
        made, usage, charge = await self._generate(preset, prompt, conversation)
        await self.log.record(conversation, preset.name, preset.provider, charge, usage)
        return made

    async def replay(self, preset: Preset, base: Receipt, conversation: str) -> StoredAnswer:
        """Resend a receipt's prompt and store the answer; raises `BackendError` or `UserError`."""
        server = base.charge.server
        made, usage, charge = await self._generate(preset, base.prompt, conversation, server)
        receipt = replace(
            base,
            preset=preset.name,
            provider=preset.provider,
            answer=made.text,
            reason=made.reason,
            usage=usage,
            timings=Timings(0.0, made.first_word_seconds, made.seconds),
            thoughts=made.thoughts,
            tool_calls=made.tool_calls,
            charge=charge,
            check="",
            is_withheld=False,
        )
        return await self.log.record_replay(conversation, receipt)

    async def _generate(
        self, preset: Preset, prompt: Prompt, conversation: str, server: str | None = None
    ) -> tuple[GeneratedAnswer, Usage, AnswerCharge]:
        backend = self.backends.get(preset.provider)
        if backend is None:
            raise BackendUnavailable(f"the provider {preset.provider!r} is not set up any more")
        prompt = replace(prompt, asked_by=OPERATOR.id)
        tokens = await backend.count_tokens(prompt)
        message = self._operator_message(conversation, server)
        async with self.spending.reserve_cost(preset, message, prompt, tokens) as reservation:
            async with self.slots.hold(
                preset.provider, StopFlag(), _ignore_progress, urgency=Urgency.BACKGROUND
            ):
                made = await generate_answer(
                    backend, reservation.prompt, _ignore_progress, _ignore_progress, self.clock
                )
            usages = list(list_usages(made, tokens))
            charge = self.spending.record_charge(reservation, preset, usages)
        return made, usages[0], charge

    def _operator_message(self, conversation: str, server: str | None) -> IncomingMessage:
        """Return a message that is charged to the operator, and to a channel and its server."""
        address = parse_address(conversation)
        return IncomingMessage(
            address=address,
            external_key="operator",
            message_id=None,
            author=OPERATOR,
            text="",
            at=self.clock.utc_now(),
            wake=None,
            scopes=(address.channel, *([server] if server else ())),
            is_private=server is None,
        )


def _ignore_progress(_event: object) -> None:
    """Show no progress, because the answer is shown when complete."""


_TRIAL_QUESTION = "Say hello in one short sentence."
_TRIAL_CONVERSATION = "web:trial"
_MAX_OUTPUT_TOKENS = 32
_REQUEST_TIMEOUT_SECONDS = 60.0


def find_trial_preset(presets: Mapping[str, Preset], provider: str) -> Preset:
    """Return the preset to test a provider with: the first one of that provider."""
    preset = next((one for one in presets.values() if one.provider == provider), None)
    if preset is None:
        raise UserError(translatable("No preset uses this provider."))
    return preset


async def try_preset(requests: OperatorRequests, preset: Preset) -> str:
    """Send one short request to a preset's model; return the answer."""
    prompt = Prompt(
        messages=(Message("user", _TRIAL_QUESTION),),
        model=build_bare_prompt(preset).model,
        conversation=_TRIAL_CONVERSATION,
        max_output_tokens=_MAX_OUTPUT_TOKENS,
        template=choose_template(preset),
    )
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
            answer = await requests.send(preset, prompt, _TRIAL_CONVERSATION)
    except TimeoutError:
        raise BackendUnavailable(f"no answer within {_REQUEST_TIMEOUT_SECONDS:g} s") from None
    return answer.text


_NOT_STORED = translatable(
    "This question is no longer in the history, so no prompt can be composed for it."
)


@value_class
class PromptReplay:
    requests: OperatorRequests
    presets: Mapping[str, Preset]
    answers: AnswerLog
    find_draft: Callable[[str], Awaitable[Preset]]
    """Returns the draft of a preset, or the published version if there is none, ready to answer;
    raises `UserError`, `SettingsError` and `RequestRefused`."""
    composer: DraftComposer
    prepare: Callable[[Preset], Preset]
    """Prepares a preset's model, which may no longer be in use; raises `SettingsError`."""

    async def replay(
        self,
        answer: StoredAnswer,
        model_of: str,
        draft: str,
        parameters: Mapping[str, object] | None = None,
    ) -> StoredAnswer:
        """Send the prompt of a stored answer again, and return the new answer.

        `draft` or `model_of` may name a preset: `draft` composes the prompt anew from its draft,
        `model_of` uses its model and parameters. `parameters` replaces single parameters.
        """
        receipt = answer.receipt
        if draft:
            preset = await self.find_draft(draft)
            base = await self._compose(answer, preset)
        else:
            preset = self._preset_to_use(receipt, model_of)
            prompt, own = receipt.prompt, build_bare_prompt(preset)
            if model_of:
                prompt = replace(
                    prompt,
                    model=own.model,
                    parameters=own.parameters,
                    max_output_tokens=own.max_output_tokens,
                    template=choose_template(preset),
                )
            version = receipt.preset_version if preset.name == receipt.preset else None
            base = replace(receipt, prompt=prompt, preset_version=version)
        changed = {**base.prompt.parameters, **(parameters or {})}
        base = replace(base, prompt=replace(base.prompt, parameters=changed))
        return await self.requests.replay(preset, base, answer.conversation)

    async def _compose(self, answer: StoredAnswer, preset: Preset) -> Receipt:
        scene = await self.answers.find_context(answer)
        if scene is None:
            raise UserError(_NOT_STORED)
        composed = await self.composer.compose(preset, None, scene, may_spend=True)
        return replace(composed, charge=answer.receipt.charge, scopes=answer.receipt.scopes)

    def _preset_to_use(self, receipt: Receipt, model_of: str) -> Preset:
        if model_of:
            chosen = self.presets.get(model_of)
            if chosen is None:
                raise UserError(translatable("There is no such preset."))
            return chosen
        stored = self.presets.get(receipt.preset)
        as_it_was = {"provider": receipt.provider, "model": receipt.prompt.model}
        bare = Preset.model_validate({"name": receipt.preset, **as_it_was})
        self.prepare(bare)
        return bare if stored is None else stored.model_copy(update=as_it_was)
