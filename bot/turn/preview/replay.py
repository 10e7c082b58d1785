"""Ask a model again with the prompt of a stored answer: no history keeps what it says.

Budgets and the limit of requests at once apply as to any answer, and the usage is counted; it is
the operator's, in the channel of the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bot.chat.console.answers import StoredAnswer
from bot.chat.console.replays import ReplayChanges, ReplayedAnswer
from bot.chat.incoming import Person, Said, address_of
from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import Receipt
from bot.errors import BackendUnavailable, UserError
from bot.ports import Backend, Clock, TokenCountingBackend, UsageLog
from bot.prompting.compose.compose import bare_prompt, template_of
from bot.prompting.draft.fit import estimate_message_tokens
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import count_tokens
from bot.replying.generate import generate_answer
from bot.replying.stop_flag import StopFlag
from bot.texts.text import translatable
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.spending import Spending, usages_of

_OPERATOR = Person("web:console", "console")
"""Whose budget it counts against, beside those of the channel, the server and the preset."""


@dataclass(frozen=True, slots=True)
class PromptReplay:
    """Sends stored prompts again.

    Args:
        backends: by provider.
        presets: those that another model can be taken from, by name.
        spending: what may be spent.
        slots: how many requests may be made at once.
        log: counts what it took.
        clock: time.
    """

    backends: Mapping[str, Backend]
    presets: Mapping[str, Preset]
    spending: Spending
    slots: ProviderSlots
    log: UsageLog
    clock: Clock

    async def replay(self, answer: StoredAnswer, changes: ReplayChanges) -> ReplayedAnswer:
        """Return another answer to the same prompt.

        Raises:
            UserError: there is no such preset, or a budget is used up.
            BackendError: the model does not answer.
        """
        preset = self._preset(answer.receipt, changes)
        prompt = _changed_prompt(answer.receipt, preset, changes)
        backend = self.backends.get(preset.provider)
        if backend is None:
            raise BackendUnavailable(f"the provider {preset.provider!r} is not set up any more")
        said = self._said(answer)
        if isinstance(backend, TokenCountingBackend):
            tokens = await backend.count_tokens(prompt)
        else:
            tokens = sum(estimate_message_tokens(prompt.messages, count_tokens))
        async with self.spending.reserved(preset, said, prompt, tokens) as reservation:
            async with self.slots.hold(preset.provider, StopFlag(), _ignore):
                made = await generate_answer(
                    backend, reservation.prompt, _ignore, _ignore, self.clock
                )
            usages = list(usages_of(made, tokens))
            charge = self.spending.charged(reservation, preset, usages)
        await self.log.record(answer.conversation, preset.name, preset.provider, charge, usages[0])
        return ReplayedAnswer(
            made.text,
            made.reason,
            preset.provider,
            charge.model,
            usages[0].prompt_tokens,
            usages[0].output_tokens,
            made.first_word_seconds,
            made.seconds,
            charge.cost,
        )

    def _preset(self, receipt: Receipt, changes: ReplayChanges) -> Preset:
        """Return whose model answers: the chosen preset, or the stored one as it was."""
        if changes.preset:
            chosen = self.presets.get(changes.preset)
            if chosen is None:
                raise UserError(translatable("There is no such preset."))
            return chosen
        stored = self.presets.get(receipt.preset)
        as_it_was = {"provider": receipt.provider, "model": receipt.prompt.model}
        if stored is None:
            return Preset.model_validate({"name": receipt.preset, **as_it_was})
        return stored.model_copy(update=as_it_was)

    def _said(self, answer: StoredAnswer) -> Said:
        """Return what budgets are found by: the channel, its server, and who asks."""
        address, server = address_of(answer.conversation), answer.receipt.charge.server
        now = self.clock.now()
        return Said(
            address=address,
            external_key="replay",
            message_id=None,
            author=_OPERATOR,
            text="",
            at=datetime.fromtimestamp(now, UTC),
            wake=None,
            scopes=(address.channel, *([server] if server else ())),
        )


def _changed_prompt(receipt: Receipt, preset: Preset, changes: ReplayChanges) -> Prompt:
    prompt = replace(receipt.prompt, asked_by=_OPERATOR.id)
    if changes.preset:
        own = bare_prompt(preset)
        prompt = replace(
            prompt,
            model=own.model,
            parameters=own.parameters,
            max_output_tokens=own.max_output_tokens,
            template=template_of(preset),
        )
    if changes.system is not None:
        others = prompt.messages
        if others and others[0].role == "system":
            others = others[1:]
        first = (Message("system", changes.system),) if changes.system.strip() else ()
        prompt = replace(prompt, messages=(*first, *others))
    return prompt


def _ignore(_event: object) -> None:
    """Show nothing: the answer is shown when it is complete."""
