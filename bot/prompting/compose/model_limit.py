"""Find what a model can read, where the composing of a prompt depends on it."""

from bot.ports import Backend, TokenCountingBackend
from bot.prompting.compose.compose import bare_prompt
from bot.prompting.presets.preset import Preset


async def find_model_limit(preset: Preset, backend: Backend) -> int | None:
    """Return what the model can read, for presets whose lore or stories depend on it.

    None: it does not matter, or the backend does not know.

    Raises:
        BackendError: the backend cannot count, and so could not answer either.
    """
    takes_a_share = preset.lorebook is not None or preset.persona is not None
    if not takes_a_share or not isinstance(backend, TokenCountingBackend):
        return None
    return await backend.max_prompt_tokens(bare_prompt(preset))
