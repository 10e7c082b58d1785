"""Ask a model again for a stored answer, to compare both: `troupe replay` and the console do.

The stored prompt is sent again, or one that is composed from a draft for the same message.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from bot.chat.console.answers import StoredAnswer
from bot.chat.console.replays import ReplayChanges, ReplayedAnswer
from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import Receipt
from bot.errors import SettingsError, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import AnswerLog
from bot.prompting.compose.compose import bare_prompt, template_of
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.turn.preview.draft_preview import DraftPreview
from bot.turn.preview.operator_requests import OperatorRequests

_NOT_STORED = translatable(
    "What was answered here is not in the history any more, so no prompt can be composed for it."
)


@frozen_dataclass
class PromptReplay:
    """Asks again.

    Args:
        requests: asks the model.
        presets: those that another model can be taken from, by name.
        answers: finds what was answered.
        find_draft: returns the draft of a preset, or the published version if there is none, ready
            to answer; raises `UserError` and `RequestRefused`.
        composer: composes prompts of drafts.
        prepare: makes the model of a preset ready, which none may use any more; raises
            `SettingsError`.
    """

    requests: OperatorRequests
    presets: Mapping[str, Preset]
    answers: AnswerLog
    find_draft: Callable[[str], Awaitable[Preset]]
    composer: DraftPreview
    prepare: Callable[[Preset], Preset]

    async def replay(self, answer: StoredAnswer, changes: ReplayChanges) -> ReplayedAnswer:
        """Return another answer to the same prompt, or to that of a draft for the same message.

        Raises:
            UserError: there is no such preset, the draft has mistakes, its prompt exceeds its
                budget, what was answered is not stored any more, or a budget is used up.
            BackendError: the model does not answer.
        """
        receipt = answer.receipt
        if changes.draft:
            preset = await self.find_draft(changes.draft)
            prompt = await self._compose(answer, preset)
        else:
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
            prompt,
        )

    async def _compose(self, answer: StoredAnswer, preset: Preset) -> Prompt:
        """Return the prompt of a preset for what was answered."""
        scene = await self.answers.find_scene(answer)
        if scene is None:
            raise UserError(_NOT_STORED)
        return (await self.composer.compose(preset, None, scene, may_spend=True)).prompt

    def _preset(self, receipt: Receipt, changes: ReplayChanges) -> Preset:
        """Return whose model answers: the chosen preset, or the stored one as it was."""
        if changes.preset:
            chosen = self.presets.get(changes.preset)
            if chosen is None:
                raise UserError(translatable("There is no such preset."))
            return chosen
        stored = self.presets.get(receipt.preset)
        as_it_was = {"provider": receipt.provider, "model": receipt.prompt.model}
        bare = Preset.model_validate({"name": receipt.preset, **as_it_was})
        try:
            self.prepare(bare)
        except SettingsError as error:
            raise UserError(str(error)) from None
        return bare if stored is None else stored.model_copy(update=as_it_was)


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
