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
from bot.prompting.compose.compose import build_empty_prompt, choose_template
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
    usage_log: UsageLog
    clock: Clock

    async def send(self, preset: Preset, prompt: Prompt, conversation: str) -> GeneratedAnswer:
        """Return the model's answer; raises `BackendError`, or `UserError` if over budget."""
        answer, usage, charge = await self._generate(preset, prompt, conversation)
        await self.usage_log.record(conversation, preset.name, preset.provider, charge, usage)
        return answer

    async def replay(self, preset: Preset, receipt: Receipt, conversation: str) -> StoredAnswer:
        """Resend a receipt's prompt and store the answer; raises `BackendError` or `UserError`."""
        server = receipt.charge.server
        answer, usage, charge = await self._generate(preset, receipt.prompt, conversation, server)
        new_receipt = replace(
            receipt,
            preset=preset.name,
            provider=preset.provider,
            answer=answer.text,
            reason=answer.reason,
            usage=usage,
            timings=Timings(0.0, answer.first_word_seconds, answer.seconds),
            thoughts=answer.thoughts,
            tool_calls=answer.tool_calls,
            charge=charge,
            check="",
            is_withheld=False,
        )
        return await self.usage_log.record_replay(conversation, new_receipt)

    async def _generate(
        self, preset: Preset, prompt: Prompt, conversation: str, server: str | None = None
    ) -> tuple[GeneratedAnswer, Usage, AnswerCharge]:
        backend = self.backends.get(preset.provider)
        if backend is None:
            raise BackendUnavailable(f"the provider {preset.provider!r} is no longer set up")
        prompt = replace(prompt, asked_by=OPERATOR.id)
        tokens = await backend.count_tokens(prompt)
        message = self._make_operator_message(conversation, server)
        async with self.spending.reserve_cost(preset, message, prompt, tokens) as reservation:
            async with self.slots.hold(
                preset.provider, StopFlag(), _ignore_progress, urgency=Urgency.BACKGROUND
            ):
                answer = await generate_answer(
                    backend, reservation.prompt, _ignore_progress, _ignore_progress, self.clock
                )
            usages = list(list_usages(answer, tokens))
            charge = self.spending.record_actual_cost(reservation, preset, usages)
        return answer, usages[0], charge

    def _make_operator_message(self, conversation: str, server: str | None) -> IncomingMessage:
        """Return a message whose cost is charged to the operator, a channel, and its server."""
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
_MAX_TRIAL_TOKENS = 32
_TRIAL_TIMEOUT_SECONDS = 60.0


def find_trial_preset(presets: Mapping[str, Preset], provider: str) -> Preset:
    """Return the first preset of a provider, for testing the provider."""
    preset = next((one for one in presets.values() if one.provider == provider), None)
    if preset is None:
        raise UserError(translatable("No preset uses this provider."))
    return preset


async def try_preset(requests: OperatorRequests, preset: Preset) -> str:
    """Send one short request to a preset's model; return the answer."""
    prompt = Prompt(
        messages=(Message("user", _TRIAL_QUESTION),),
        model=build_empty_prompt(preset).model,
        conversation=_TRIAL_CONVERSATION,
        max_output_tokens=_MAX_TRIAL_TOKENS,
        template=choose_template(preset),
    )
    try:
        async with asyncio.timeout(_TRIAL_TIMEOUT_SECONDS):
            answer = await requests.send(preset, prompt, _TRIAL_CONVERSATION)
    except TimeoutError:
        raise BackendUnavailable(f"no answer within {_TRIAL_TIMEOUT_SECONDS:g} s") from None
    return answer.text


_NOT_STORED_NOTICE = translatable(
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
    prepare_preset: Callable[[Preset], Preset]
    """Prepares a preset's model, which may no longer be in use; raises `SettingsError`."""

    async def replay(
        self,
        answer: StoredAnswer,
        preset_name: str,
        draft: str,
        parameters: Mapping[str, object] | None = None,
    ) -> StoredAnswer:
        """Send the prompt of a stored answer again, and return the new answer.

        `draft` names a preset whose draft composes a new prompt, and `preset_name` one whose model
        and parameters are used; both may be empty. `parameters` overrides single parameters.
        """
        receipt = answer.receipt
        if draft:
            preset = await self.find_draft(draft)
            new_receipt = await self._compose_receipt(answer, preset)
        else:
            preset = self._choose_preset(receipt, preset_name)
            prompt, bare_prompt = receipt.prompt, build_empty_prompt(preset)
            if preset_name:
                prompt = replace(
                    prompt,
                    model=bare_prompt.model,
                    parameters=bare_prompt.parameters,
                    max_output_tokens=bare_prompt.max_output_tokens,
                    template=choose_template(preset),
                )
            version = receipt.preset_version if preset.name == receipt.preset else None
            new_receipt = replace(receipt, prompt=prompt, preset_version=version)
        sampling = {**new_receipt.prompt.parameters, **(parameters or {})}
        new_receipt = replace(new_receipt, prompt=replace(new_receipt.prompt, parameters=sampling))
        return await self.requests.replay(preset, new_receipt, answer.conversation)

    async def _compose_receipt(self, answer: StoredAnswer, preset: Preset) -> Receipt:
        scene = await self.answers.find_scene(answer)
        if scene is None:
            raise UserError(_NOT_STORED_NOTICE)
        receipt = await self.composer.compose(preset, None, scene, may_spend=True)
        return replace(receipt, charge=answer.receipt.charge, scopes=answer.receipt.scopes)

    def _choose_preset(self, receipt: Receipt, preset_name: str) -> Preset:
        if preset_name:
            preset = self.presets.get(preset_name)
            if preset is None:
                raise UserError(translatable("There is no such preset."))
            return preset
        live_preset = self.presets.get(receipt.preset)
        model_values = {"provider": receipt.provider, "model": receipt.prompt.model}
        bare_preset = Preset.model_validate({"name": receipt.preset, **model_values})
        self.prepare_preset(bare_preset)
        return bare_preset if live_preset is None else live_preset.model_copy(update=model_values)
