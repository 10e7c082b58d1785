"""Try whether a provider answers, with the shortest request that shows it."""

import asyncio
from collections.abc import Mapping

from bot.chat.prompt import Message, Prompt
from bot.errors import BackendUnavailable, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.compose.compose import bare_prompt, template_of
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.turn.preview.operator_requests import OperatorRequests

_QUESTION = "Say hello in one short sentence."
_CONVERSATION = "web:trial"
_MAX_OUTPUT_TOKENS = 32
_MAX_SECONDS = 60.0


@frozen_dataclass
class ProviderTrial:
    """Sends one short request, which closes an open circuit breaker if it is answered."""

    requests: OperatorRequests
    presets: Mapping[str, Preset]

    async def try_provider(self, provider: str) -> str:
        """Return what the model of the provider's first preset answers.

        Raises:
            UserError: no preset uses the provider, or a budget is used up.
            BackendError: it does not answer.
        """
        preset = next((one for one in self.presets.values() if one.provider == provider), None)
        if preset is None:
            raise UserError(translatable("No preset uses this provider."))
        bare = bare_prompt(preset)
        prompt = Prompt(
            messages=(Message("user", _QUESTION),),
            model=bare.model,
            conversation=_CONVERSATION,
            max_output_tokens=_MAX_OUTPUT_TOKENS,
            template=template_of(preset),
        )
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                answer = await self.requests.send(preset, prompt, _CONVERSATION)
        except TimeoutError:
            raise BackendUnavailable(f"no answer within {_MAX_SECONDS:g} s") from None
        return answer.generated.text
