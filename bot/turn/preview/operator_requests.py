"""Ask a model something for the operator of the console: no history keeps what it says.

Budgets and the limit of requests at once apply as to any answer, and the usage is counted; it is
the operator's, in the channel that the request is about.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from bot.chat.incoming import Person, Said, address_of
from bot.chat.prompt import Prompt, Usage
from bot.chat.usage import AnswerCharge
from bot.errors import BackendUnavailable
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, Clock, TokenCountingBackend, UsageLog
from bot.prompting.draft.fit import estimate_message_tokens
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import count_tokens
from bot.replying.generate import GeneratedAnswer, generate_answer
from bot.replying.stop_flag import StopFlag
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.slot_queue import Urgency
from bot.turn.limits.spending import Spending, usages_of

_OPERATOR = Person("web:console", "console")
"""Whose budget it counts against, beside those of the channel, the server and the preset."""


@frozen_dataclass
class OperatorAnswer:
    """What a model said to the operator."""

    generated: GeneratedAnswer
    usage: Usage
    charge: AnswerCharge


@frozen_dataclass
class OperatorRequests:
    """Sends requests that no message asked for.

    Args:
        backends: by provider.
        spending: what may be spent.
        slots: how many requests may be made at once.
        log: counts what it took.
        clock: time.
    """

    backends: Mapping[str, Backend]
    spending: Spending
    slots: ProviderSlots
    log: UsageLog
    clock: Clock

    async def send(
        self, preset: Preset, prompt: Prompt, conversation: str, server: str | None = None
    ) -> OperatorAnswer:
        """Return what the model of a preset answers to a prompt.

        Raises:
            UserError: a budget is used up.
            BackendError: the model does not answer.
        """
        backend = self.backends.get(preset.provider)
        if backend is None:
            raise BackendUnavailable(f"the provider {preset.provider!r} is not set up any more")
        prompt = replace(prompt, asked_by=_OPERATOR.id)
        if isinstance(backend, TokenCountingBackend):
            tokens = await backend.count_tokens(prompt)
        else:
            tokens = sum(estimate_message_tokens(prompt.messages, count_tokens))
        said = self._said(conversation, server)
        async with self.spending.reserved(preset, said, prompt, tokens) as reservation:
            async with self.slots.hold(
                preset.provider, StopFlag(), _ignore, urgency=Urgency.BACKGROUND
            ):
                made = await generate_answer(
                    backend, reservation.prompt, _ignore, _ignore, self.clock
                )
            usages = list(usages_of(made, tokens))
            charge = self.spending.charged(reservation, preset, usages)
        await self.log.record(conversation, preset.name, preset.provider, charge, usages[0])
        return OperatorAnswer(made, usages[0], charge)

    async def ask(self, preset: Preset, prompt: Prompt, conversation: str) -> GeneratedAnswer:
        """Return the answer alone; raises as `send`."""
        return (await self.send(preset, prompt, conversation)).generated

    def _said(self, conversation: str, server: str | None) -> Said:
        """Return what budgets are found by: the channel, its server, and who asks."""
        address = address_of(conversation)
        return Said(
            address=address,
            external_key="operator",
            message_id=None,
            author=_OPERATOR,
            text="",
            at=datetime.fromtimestamp(self.clock.now(), UTC),
            wake=None,
            scopes=(address.channel, *([server] if server else ())),
            is_private=server is None,
        )


def _ignore(_event: object) -> None:
    """Show nothing: the answer is shown when it is complete."""
