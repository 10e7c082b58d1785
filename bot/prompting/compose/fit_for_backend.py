"""Fit a draft to the preset's token budget and the model's context length."""

from bot.chat.prompt import Prompt
from bot.ports import Backend, TokenCountingBackend
from bot.prompting.draft.draft import Draft
from bot.prompting.draft.fit import FittedPrompt, estimate_message_tokens, fit_draft
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import count_tokens, get_counter


async def fit_for_backend(preset: Preset, draft: Draft, backend: Backend) -> FittedPrompt:
    """Count in the preset's encoding, else with the backend's tokenizer, else by an estimate.

    Raises:
        UserError: the required parts of the prompt exceed the budget.
        BackendError: the backend cannot count, and so could not answer either.
    """
    limit, encoding = preset.max_input_tokens, preset.token_counter
    if not isinstance(backend, TokenCountingBackend):
        count = get_counter(encoding).count_prompt if encoding else estimate_prompt_tokens
        return await fit_draft(draft, limit, count)
    max_prompt_tokens = await backend.max_prompt_tokens(draft.base)
    if encoding is None:
        limits = [one for one in (limit, max_prompt_tokens) if one is not None]
        return await fit_draft(draft, min(limits, default=None), backend.count_tokens)
    fitted = await fit_draft(draft, limit, get_counter(encoding).count_prompt)
    if max_prompt_tokens is None or (
        await backend.count_tokens(fitted.prompt) <= max_prompt_tokens
    ):
        return fitted
    smaller = await fit_draft(fitted.draft, max_prompt_tokens, backend.count_tokens)
    return smaller.with_earlier_drops(fitted)


async def estimate_prompt_tokens(prompt: Prompt) -> int:
    """Estimate the tokens of a prompt, for backends that cannot count."""
    return sum(estimate_message_tokens(prompt.messages, count_tokens))
