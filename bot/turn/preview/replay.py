"""Ask a model again with the prompt of a stored answer, to compare both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bot.chat.console.answers import StoredAnswer
from bot.chat.console.replays import ReplayChanges, ReplayedAnswer
from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import Receipt
from bot.errors import UserError
from bot.prompting.compose.compose import bare_prompt, template_of
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.turn.preview.operator_requests import OperatorRequests


@dataclass(frozen=True, slots=True)
class PromptReplay:
    """Sends stored prompts again.

    Args:
        requests: asks the model.
        presets: those that another model can be taken from, by name.
    """

    requests: OperatorRequests
    presets: Mapping[str, Preset]

    async def replay(self, answer: StoredAnswer, changes: ReplayChanges) -> ReplayedAnswer:
        """Return another answer to the same prompt.

        Raises:
            UserError: there is no such preset, or a budget is used up.
            BackendError: the model does not answer.
        """
        receipt = answer.receipt
        preset = self._preset(receipt, changes)
        prompt = _changed_prompt(receipt, preset, changes)
        made = await self.requests.send(preset, prompt, answer.conversation, receipt.charge.server)
        return ReplayedAnswer(
            made.generated.text,
            made.generated.reason,
            preset.provider,
            made.charge.model,
            made.usage.prompt_tokens,
            made.usage.output_tokens,
            made.generated.first_word_seconds,
            made.generated.seconds,
            made.charge.cost,
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


def _changed_prompt(receipt: Receipt, preset: Preset, changes: ReplayChanges) -> Prompt:
    prompt = receipt.prompt
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
