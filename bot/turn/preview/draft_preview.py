"""Compose the prompt of a preset that does not answer anywhere yet: nothing is asked or stored.

It takes the path of a real answer up to the request (`PromptSources.fit`).
"""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.console.scene import Scene, recorded_scene
from bot.chat.prompt import Usage
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage
from bot.chat.usage import AnswerCharge
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, Conversations
from bot.prompting.compose.compose import bare_prompt
from bot.prompting.compose.fit_for_backend import can_count
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import counter_for_model, get_counter
from bot.replying.generate import GeneratedAnswer, WaitedSeconds, build_receipt
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.routing.preset_resolver import PresetResolver
from bot.turn.limits.embedding_spending import NoEmbeddingSpending
from bot.turn.prompt_sources import PromptSources

_MAX_TURNS = 400
_NO_ANSWER = GeneratedAnswer("", None, Usage(), None, 0.0)
_NO_EPOCH = 0  # less than any claim's: it reads, and never writes


@frozen_dataclass
class DraftPreview:
    """Tells what a model would read of a preset."""

    sources: PromptSources
    resolver: PresetResolver
    conversations: Conversations

    async def compose(
        self, preset: Preset, version: int | None, scene: Scene, *, may_spend: bool
    ) -> Receipt:
        """Return the prompt of the answer to a scene, as the receipt of the answer would be.

        Other characters of the channel stay; the preset takes the place of the one of its name, or
        else of the one that answered. Unless it `may_spend`, stories that an embedding service
        would have to find are left out, as the receipt says.

        Raises:
            UserError: the required parts exceed the budget.
            BackendError: the backend cannot count, and so could not answer either.
            StoreError: nothing can be read.
        """
        said = scene.said
        speaker = ActivePreset(preset, None, version)
        claim = Claim(said.address.conversation, _NO_EPOCH, "preview")
        sources = self.sources
        if not may_spend:
            sources = replace(sources, embedding_payer=NoEmbeddingSpending)
        context = await sources.load(
            claim,
            InboxMessage(0, said, 0),
            said,
            await self._active(speaker, scene),
            [speaker],
            before=scene.before,
        )
        context.turns.extend(scene.answers)
        fitted = await sources.fit(preset, context)
        return build_receipt(_NO_ANSWER, fitted, preset, version, WaitedSeconds(), AnswerCharge())

    async def count(self, preset: Preset, texts: Sequence[str]) -> Sequence[int]:
        """Return the tokens of texts as the preset's model counts them.

        Raises:
            BackendError: the backend cannot count.
        """
        if preset.token_counter:
            return get_counter(preset.token_counter)(texts)
        backend: Backend = self.sources.backends[preset.provider]
        if can_count(backend):
            counter = await backend.text_counter(bare_prompt(preset))
            return counter(texts)
        estimate = counter_for_model(preset.model)
        await estimate.load()
        return estimate(texts)

    async def recorded(self, conversation: str) -> Scene | None:
        """Return the newest message to somebody in a conversation, and what was said before it.

        None: there is no such message.
        """
        claim = Claim(conversation, _NO_EPOCH, "preview")
        session = await self.conversations.load_session(claim, _MAX_TURNS)
        scene = recorded_scene(conversation, session.number, session.turns)
        return None if scene is None else replace(scene, answers=())

    async def _active(self, speaker: ActivePreset, scene: Scene) -> ActiveCharacters:
        name = speaker.preset.name
        found = await self.resolver.resolve(scene.said.scopes)
        replaced = name if name in found.names else scene.answered_by
        if replaced not in found.names:
            return ActiveCharacters((speaker,))
        return ActiveCharacters(
            tuple(speaker if one.preset.name == replaced else one for one in found.members)
        )
