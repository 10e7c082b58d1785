"""Fit a draft to its preset's budget and to its model's room, by whoever counts best."""

from bot.chat.prompt import Prompt
from bot.ports import Backend, TokenCountingBackend
from bot.prompting.draft.draft import Draft
from bot.prompting.draft.fit import FittedPrompt, estimate_message_tokens, fit_draft
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import count_tokens, get_counter


async def fit_for_backend(preset: Preset, draft: Draft, backend: Backend) -> FittedPrompt:
    """Count as the preset says, else as its backend does, else by an estimate.

    Raises:
        UserError: what must be in the prompt is too large.
        BackendError: the backend cannot count, as it then could not answer.
    """
    limit, name = preset.max_input_tokens, preset.token_counter
    if not isinstance(backend, TokenCountingBackend):
        return await fit_draft(
            draft, limit, get_counter(name).count_prompt if name else estimate_prompt_tokens
        )
    room = await backend.max_prompt_tokens(draft.base)
    if name is None:
        given = [one for one in (limit, room) if one is not None]
        return await fit_draft(draft, min(given, default=None), backend.count_tokens)
    fitted = await fit_draft(draft, limit, get_counter(name).count_prompt)
    if room is None or await backend.count_tokens(fitted.prompt) <= room:
        return fitted
    return (await fit_draft(fitted.draft, room, backend.count_tokens)).with_earlier_drops(fitted)


async def estimate_prompt_tokens(prompt: Prompt) -> int:
    """What a prompt costs, roughly, where nobody can count it."""
    return sum(estimate_message_tokens(prompt.messages, count_tokens))
