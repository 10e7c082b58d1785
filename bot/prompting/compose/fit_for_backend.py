"""Fit a draft to its preset's budget and to its model's room, by whoever counts best."""

from bot.chat.prompt import Prompt
from bot.ports import Backend, TokenCountingBackend
from bot.prompting.draft.draft import Draft
from bot.prompting.draft.fit import Fitted, costs, fit
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import count_tokens, get_counter


async def fit_for(preset: Preset, draft: Draft, backend: Backend) -> Fitted:
    """Count as the preset says, else as its backend does, else by an estimate.

    Raises:
        UserError: what must be in the prompt is too large.
        BackendError: the backend cannot count, as it then could not answer.
    """
    limit, name = preset.max_input_tokens, preset.token_counter
    if not isinstance(backend, TokenCountingBackend):
        return await fit(draft, limit, get_counter(name).count_prompt if name else estimated)
    room = await backend.max_prompt_tokens(draft.frame)
    if name is None:
        given = [one for one in (limit, room) if one is not None]
        return await fit(draft, min(given, default=None), backend.count_tokens)
    fitted = await fit(draft, limit, get_counter(name).count_prompt)
    if room is None or await backend.count_tokens(fitted.prompt) <= room:
        return fitted
    return (await fit(fitted.draft, room, backend.count_tokens)).after(fitted)


async def estimated(prompt: Prompt) -> int:
    """What a prompt costs, roughly, where nobody can count it."""
    return sum(costs(prompt.messages, count_tokens))
