"""Make the tools that a preset offers its model, for one answer in one channel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import structlog

from bot.chat.session import ReadableTurns, Turn, all_turns
from bot.chat.story import Story
from bot.chat.tool import ToolName
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, Clock, Conversations, ToolCallingBackend, ToolServer
from bot.prompting.compose.compose import template_of
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.labels import label_speakers
from bot.replying.tool_rounds import ToolRounds
from bot.stories import RetrieveStories
from bot.tools import Tool, Toolbox, dice_tool, history_tool, server_tools, story_tool, time_tool
from bot.turn.prompt_sources import PayerOf, TurnContext

_log = structlog.get_logger(__name__)
_MAX_SEARCHED_TURNS = 500


@frozen_dataclass
class AnswerTools:
    """Knows what the tools read: the channel's own history, the character's own stories."""

    conversations: Conversations
    retrieve_stories: RetrieveStories
    clock: Clock
    random_number: Callable[[], float]
    servers: Mapping[str, ToolServer] = field(default_factory=dict)
    """By the name that presets give."""
    embedding_payer: PayerOf | None = None
    """Who pays for the embedding of a search; None: nobody."""
    readable: ReadableTurns = all_turns
    """Leaves out what people said to each other who do not want that to be remembered."""

    async def for_answer(
        self, preset: Preset, backend: Backend, context: TurnContext
    ) -> ToolRounds | None:
        """Return the tools of an answer; None if it has none, or the backend offers none."""
        if not preset.calls_tools:
            return None
        if not isinstance(backend, ToolCallingBackend):
            return None
        if not await backend.calls_tools(preset.model, template_of(preset)):
            _log.info("tools_not_offered", preset=preset.name, provider=preset.provider)
            return None
        made: Mapping[ToolName, Callable[[], Tool]] = {
            "time": lambda: time_tool(self.clock),
            "dice": lambda: dice_tool(self.random_number),
            "history": lambda: self._history_tool(preset, context),
            "stories": lambda: self._story_tool(preset, context),
        }
        tools = [made[name]() for name in dict.fromkeys(preset.tools)]
        # One that failed at the start is not there.
        servers = [self.servers[name] for name in preset.mcp_servers if name in self.servers]
        for server in servers:
            await server.wait_until_tried()
        tools += server_tools(servers)
        # Without any, a model may still call one that it remembers: it is told that there is none.
        return ToolRounds(Toolbox(tools, self.clock))

    def _history_tool(self, preset: Preset, context: TurnContext) -> Tool:
        async def load_turns() -> Sequence[Turn]:
            session = await self.conversations.load_session(context.claim, _MAX_SEARCHED_TURNS)
            turns = await self.readable(session.turns)
            return [one for one in turns if not one.observed or preset.context == "all"]

        def label(turns: Sequence[Turn]) -> Callable[[Turn, str], str]:
            people = [one.speaker for one in turns if one.speaker]
            labels = label_speakers([*people, context.said.author], context.character_names)
            return lambda turn, text: labels.tag_text(labels.label_of(turn, preset.name), text)

        return history_tool(load_turns, label)

    def _story_tool(self, preset: Preset, context: TurnContext) -> Tool:
        payer = self.embedding_payer(preset, context.said) if self.embedding_payer else None

        async def search(about: str) -> Sequence[Story]:
            found = await self.retrieve_stories(preset, about, payer) or {}
            stories = {one.id: one for found_of_one in found.values() for one in found_of_one}
            return sorted(stories.values(), key=lambda one: -one.score)

        return story_tool(search)
