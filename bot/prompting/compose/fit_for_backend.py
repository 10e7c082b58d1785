"""Fit a draft to the preset's token budget and the model's context length."""

from functools import cache
from typing import TypeGuard

from bot.chat.prompt import Prompt
from bot.ports import Backend, TokenCountingBackend
from bot.prompting.draft.draft import Draft
from bot.prompting.draft.fit import FittedPrompt, estimate_message_tokens, fit_draft
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import counter_for_model, get_counter


async def fit_for_backend(preset: Preset, draft: Draft, backend: Backend) -> FittedPrompt:
    """Count in the preset's encoding, else with the backend's tokenizer, else by an estimate.

    Raises:
        UserError: the required parts of the prompt exceed the budget.
        BackendError: the backend cannot count, and so could not answer either.
    """
    limit, encoding = preset.max_input_tokens, preset.token_counter
    if not can_count(backend):
        return await fit_for_preset(preset, draft)
    max_prompt_tokens = await backend.max_prompt_tokens(draft.base)
    if encoding is None:
        limits = [one for one in (limit, max_prompt_tokens) if one is not None]
        estimate = await backend.text_counter(draft.base)
        return await fit_draft(draft, min(limits, default=None), backend.count_tokens, estimate)
    fitted = await fit_for_preset(preset, draft)
    if max_prompt_tokens is None or (
        await backend.count_tokens(fitted.prompt) <= max_prompt_tokens
    ):
        return fitted
    estimate = get_counter(encoding)
    smaller = await fit_draft(fitted.draft, max_prompt_tokens, backend.count_tokens, estimate)
    return smaller.with_earlier_drops(fitted)


def can_count(backend: Backend) -> TypeGuard[TokenCountingBackend]:
    """Whether a backend counts tokens; `isinstance` with a protocol looks up all its methods."""
    return _is_counting(type(backend))


@cache
def _is_counting(kind: type[Backend]) -> bool:
    return issubclass(kind, TokenCountingBackend)


async def fit_for_preset(preset: Preset, draft: Draft) -> FittedPrompt:
    """Fit a draft without asking its backend; raises as `fit_for_backend`.

    It is counted in the preset's encoding, else by an estimate for its model.
    """
    limit = preset.max_input_tokens
    if preset.token_counter:
        token_counter = get_counter(preset.token_counter)
        return await fit_draft(draft, limit, token_counter.count_prompt, token_counter)
    token_counter = counter_for_model(preset.model)
    await token_counter.load()

    async def estimate_prompt(prompt: Prompt) -> int:
        return sum(estimate_message_tokens(prompt.messages, token_counter))

    return await fit_draft(draft, limit, estimate_prompt, token_counter)
