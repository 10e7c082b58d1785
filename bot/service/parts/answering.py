"""What answers: the worker of conversations and the stages of a turn."""

import random
from functools import cached_property, partial

from bot.commands.forgetting import ChannelForgetting, PersonForgetting, SharedMemories
from bot.media.attachment_reader import AttachmentReader
from bot.media.fetching import PublicFetcher
from bot.media.voice_messages import VoiceMessages
from bot.ports import ConversationMemory
from bot.routing.decision_log import DecisionLog
from bot.service.parts.commands import CommandParts
from bot.service.parts.limits import LimitParts
from bot.service.parts.platform_calls import PlatformCalls
from bot.service.parts.queue import QueueParts
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.sending import SendingParts
from bot.service.parts.stored import StoredParts
from bot.storage.expired_turns import kept_since
from bot.storage.personal_data import SqlForgottenConversations
from bot.storage.sql.retention import FORGOTTEN_SECONDS
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.web.forgotten_messages import ForgottenWebMessages
from bot.summaries.summarizer import Summarizer
from bot.turn.answer import AnswerPipeline
from bot.turn.channel_reader import ChannelReader
from bot.turn.gathering import MessageGatherer
from bot.turn.limits.embedding_spending import EmbeddingSpending
from bot.turn.limits.queue_limit import QueueLimit
from bot.turn.limits.refused_chats import RefusedChats
from bot.turn.limits.summary_spending import BudgetedSummaries
from bot.turn.prompt_sources import PromptSources
from bot.turn.stages import TurnStages
from bot.turn.tools.answer_tools import AnswerTools
from bot.turn.worker import ConversationWorker


class AnsweringParts:
    """The worker, and the stages that only it sees."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        limits: LimitParts,
        calls: PlatformCalls,
        requests: RequestParts,
        queue: QueueParts,
        sending: SendingParts,
        commands: CommandParts,
    ) -> None:
        self._context = context
        self._stored = stored
        self._limits = limits
        self._calls = calls
        self._requests = requests
        self._queue = queue
        self._sending = sending
        self._commands = commands

    @cached_property
    def worker(self) -> ConversationWorker:
        stored, context = self._stored, self._context
        settings = context.resources.chat_settings  # tells the other processes itself
        kept = [settings] if isinstance(settings, ConversationMemory) else []
        web = ForgottenWebMessages(
            stored.web_channels, stored.conversations, stored.history_index, stored.inbox
        )
        memories = [*kept, web, self.shared_memories]
        return ConversationWorker(
            *(stored.conversations, memories, self._stages(), context.owner, context.clock),
            self._sending.leases,
        )

    @cached_property
    def decisions(self) -> DecisionLog:
        return DecisionLog(self._stored.message_notes, self._context.clock)

    def _stages(self) -> TurnStages:
        stored, requests, queue = self._stored, self._requests, self._queue
        answer_limits = self._limits.answer_limits
        return TurnStages(
            self._context.resources.resolver,
            self._commands.handlers,
            self._pipeline,
            self._sending.replies,
            queue.stops,
            requests.answer_buttons,
            PersonForgetting(stored.personal_data, requests.personas, queue.receive),
            ChannelForgetting(stored.history_index, queue.receive),
            MessageGatherer(stored.conversations, queue.arrivals, self._context.clock),
            queue.arrivals,
            VoiceMessages(
                self._calls.download,
                self._context.models.backends,
                answer_limits.admits_voice if answer_limits is not None else None,
            ),
            self.decisions,
            stored.message_notes,
            explain_silence=self._calls.explain_silence,
            is_paused=queue.pauses.covers,
            is_void=queue.restored.is_void,
            is_context=queue.restored.is_context,
            notices=self._limits.notices,
            queue_limit=self._queue_limit,
            command_limits=self._limits.command_limits,
            refused_chats=self._refused_chats,
        )

    @property
    def _refused_chats(self) -> RefusedChats:
        return RefusedChats(
            self._context.clock,
            self._context.resources.signals,
            self._limits.notices,
            self._commands.admin_notes,
        )

    @property
    def _queue_limit(self) -> QueueLimit | None:
        context, most = self._context, self._context.settings.limits.waiting_in_conversation
        if context.is_in_terminal or not most:
            return None
        return QueueLimit(
            self._stored.conversations,
            self._queue.arrivals,
            self._sending.replies,
            context.clock,
            most,
        )

    @cached_property
    def shared_memories(self) -> SharedMemories:
        resources = self._context.resources
        backends = self._context.models.backends
        return SharedMemories(
            lambda: [
                self._stored.conversations.windows,
                *(one for one in backends.values() if isinstance(one, ConversationMemory)),
            ],
            resources.signals,
            SqlForgottenConversations(resources.database),
            self._context.clock,
            FORGOTTEN_SECONDS,
        )

    @cached_property
    def summarizer(self) -> Summarizer:
        limits = self._limits
        spending = BudgetedSummaries(limits.spending, self._stored.usage_log, limits.provider_slots)
        summaries = SqlSummaries(self._context.resources.database)
        readable = self._context.resources.resolver.readable
        return Summarizer(summaries, self._context.models.backends, spending, readable)

    @cached_property
    def prompt_sources(self) -> PromptSources:
        fetch = PublicFetcher().fetch if self._context.settings.fetch_links else None
        return PromptSources(
            self._stored.conversations,
            self._context.resources.resolver,
            self._requests.personas,
            self._context.models.retrieve_stories,
            self.summarizer,
            ChannelReader(
                self._calls.read_before,
                self._calls.read_start,
                partial(kept_since, self._context.clock, self._context.settings.history_days),
            ),
            AttachmentReader(self._calls.download, fetch),
            self._context.models.backends,
            partial(EmbeddingSpending, spending=self._limits.spending),
        )

    @cached_property
    def _pipeline(self) -> AnswerPipeline:
        limits, models = self._limits, self._context.models
        return AnswerPipeline(
            self.prompt_sources,
            models.backends,
            self._sending.replies,
            self._context.clock,
            limits=limits.answer_limits,
            slots=limits.provider_slots,
            spending=limits.spending,
            notices=limits.notices,
            tools=AnswerTools(
                self._stored.conversations,
                models.retrieve_stories,
                self._context.clock,
                random.random,
                models.tool_servers,
                partial(EmbeddingSpending, spending=limits.spending),
                self._context.resources.resolver.readable,
            ),
            admin_notes=self._commands.admin_notes,
        )
