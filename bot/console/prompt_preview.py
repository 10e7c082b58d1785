"""Compose prompts of drafts and unsent messages, without calling a model or storing anything."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from bot.chat.command import Command
from bot.chat.drafts import Scene, find_newest_scene
from bot.chat.incoming import IncomingMessage
from bot.chat.prompt import Usage
from bot.chat.receipt import ConsideredCharacter, NextAnswer, Receipt
from bot.chat.session import Claim, InboxMessage
from bot.chat.usage import AnswerCharge
from bot.commands.request import OpenQuestion
from bot.errors import BackendError, UserError
from bot.intake import to_storable_message
from bot.ports import Clock
from bot.prompting.compose.compose import build_empty_prompt
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import get_counter
from bot.replying.generate import GeneratedAnswer, build_receipt
from bot.routing.decide import Answer, Ignore, Observe, Unreadable, decide_on_message
from bot.routing.presets import ActiveCharacters, ActivePreset, PresetResolver
from bot.routing.speakers import Dice, SpeakerCandidate
from bot.storage.conversations import Conversations
from bot.texts.text import translatable
from bot.turn.limits.spending import Spending
from bot.turn.message_groups import MessageGroup
from bot.turn.prompt_inputs import PromptSources, TurnContext
from bot.turn.worker import TURNS_FOR_ROUTING
from bot.value_class import value_class

_NEW_HISTORY_NOTICE = translatable(
    "A reply to an earlier message starts a new history. Its prompt is known once you send it."
)
_NO_ANSWER = GeneratedAnswer("", None, Usage(), None, 0.0)
_LOWEST_EPOCH = 0  # lower than any claim's epoch, because the preview only reads


@value_class
class PromptPreview:
    sources: PromptSources
    resolver: PresetResolver
    conversations: Conversations
    spending: Spending
    clock: Clock
    route_to_history: Callable[[IncomingMessage], Awaitable[IncomingMessage | None]]
    """Returns a message with the address of its history; None if it would start a new history."""
    dice: Dice | None = None
    """The random source; None: seeded by the text, so that the preview does not flicker."""

    async def preview(self, message: IncomingMessage) -> NextAnswer:
        """Return the characters that would answer a message, and the first character's prompt."""
        routed_message = await self.route_to_history(to_storable_message(message))
        if routed_message is None:
            return NextAnswer(problem=_NEW_HISTORY_NOTICE)
        message = routed_message
        active = await self.resolver.resolve(message.scopes)
        claim = Claim(message.address.conversation, _LOWEST_EPOCH, "preview")
        session = await self.conversations.load_session(claim, TURNS_FOR_ROUTING)
        now = self.clock.utc_now()
        dice = self.dice or random.Random(message.text).random  # noqa: S311
        decision = decide_on_message(message, active, session.turns, dice=dice, now=now)
        match decision:
            case Command() | Unreadable():
                return NextAnswer(is_command=isinstance(decision, Command))
            case Ignore(candidates) | Observe(candidates):
                return NextAnswer(_list_considered_characters(candidates, active))
            case Answer(speakers, candidates):
                return await self._compose(claim, message, active, speakers, candidates)

    async def _compose(
        self,
        claim: Claim,
        message: IncomingMessage,
        active: ActiveCharacters,
        speakers: tuple[ActivePreset, ...],
        candidates: Sequence[SpeakerCandidate],
    ) -> NextAnswer:
        characters, problem = _list_considered_characters(candidates, active), None
        group = MessageGroup(claim, InboxMessage(0, message, 0))
        context = await self.sources.load_context(group, OpenQuestion(message, speakers), active)
        for speaker in speakers:
            try:
                receipt = await self._compose_into_receipt(speaker, context)
            except (BackendError, UserError) as error:
                problem = problem or error.text
            else:
                limit = receipt.prompt.max_output_tokens
                return NextAnswer(characters, prompt=receipt, max_answer_tokens=limit)
        return NextAnswer(characters, problem=problem)

    async def _compose_into_receipt(self, speaker: ActivePreset, context: TurnContext) -> Receipt:
        prompt = await self.sources.fit_prompt(speaker.preset, context)
        prompt = self.spending.prompt_with_output_limit(speaker.preset, context.incoming, prompt)
        preset, version, scopes = speaker.preset, speaker.version, context.incoming.scopes
        return build_receipt(_NO_ANSWER, prompt, preset, version, AnswerCharge(), scopes)


def _list_considered_characters(
    candidates: Sequence[SpeakerCandidate], active: ActiveCharacters
) -> tuple[ConsideredCharacter, ...]:
    names = {one.name: one.character_name for one in active.presets}
    return tuple(
        ConsideredCharacter(one.preset, names[one.preset], one.chosen, one.score, one.reasons)
        for one in candidates
    )


_MAX_LOADED_TURNS = 400


@value_class
class DraftComposer:
    """Composes prompts and counts tokens as for an answer, without calling a model."""

    sources: PromptSources
    resolver: PresetResolver
    conversations: Conversations

    async def compose(
        self, preset: Preset, version: int | None, scene: Scene, *, may_spend: bool
    ) -> Receipt:
        """Compose the prompt for a scene, and return it as the receipt of an answer without text.

        The preset replaces the active character of the same name or, if there is none, the one
        that answered. Without `may_spend`, stories that need an embedding service are left out.
        Raises `UserError` if the token budget is too small, and `BackendError` if the tokens
        cannot be counted.
        """
        message = scene.message
        speaker = ActivePreset(preset, None, version)
        claim = Claim(message.address.conversation, _LOWEST_EPOCH, "preview")
        sources = self.sources if may_spend else replace(self.sources, may_spend=False)
        active = await self._replace_speaker(speaker, scene)
        group = MessageGroup(claim, InboxMessage(0, message, 0))
        question = OpenQuestion(message, (speaker,))
        context = await sources.load_context(
            group, question, active, session_override=scene.session_before_message
        )
        context.turns.extend(scene.answers)
        prompt = await sources.fit_prompt(preset, context)
        return build_receipt(_NO_ANSWER, prompt, preset, version, AnswerCharge())

    async def count_tokens(self, preset: Preset, texts: Sequence[str]) -> Sequence[int]:
        if preset.token_counter:
            return get_counter(preset.token_counter)(texts)
        prompt = build_empty_prompt(preset)
        counter = await self.sources.backends[preset.provider].text_counter(prompt)
        return counter(texts)

    async def find_recorded_scene(self, conversation: str) -> Scene | None:
        claim = Claim(conversation, _LOWEST_EPOCH, "preview")
        session = await self.conversations.load_session(claim, _MAX_LOADED_TURNS)
        scene = find_newest_scene(conversation, session.number, session.turns)
        return None if scene is None else replace(scene, answers=())

    async def _replace_speaker(self, speaker: ActivePreset, scene: Scene) -> ActiveCharacters:
        name = speaker.preset.name
        active = await self.resolver.resolve(scene.message.scopes)
        replaced_name = name if name in active.names else scene.answering_preset
        if replaced_name not in active.names:
            return ActiveCharacters((speaker,))
        members = (speaker if one.preset.name == replaced_name else one for one in active.members)
        return ActiveCharacters(tuple(members))
