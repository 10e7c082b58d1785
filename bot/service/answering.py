"""The part of the container that creates the components for answering messages."""

import random
from abc import ABC
from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from bot.backends.exact_prompt import PastPromptWriter
from bot.chat.incoming import parse_source
from bot.chat.session import ClaimedMessage
from bot.commands.access import AccessHandlers, PairingCodes
from bot.commands.answers import NewestQuestionHandlers
from bot.commands.handlers import GRANTABLE_COMMANDS, CommandHandlers
from bot.commands.memories import MemoryHandlers
from bot.commands.menus import HistoryScopeHandlers, SettingMenus
from bot.commands.presets import Greetings, PresetHandlers
from bot.commands.privacy import (
    DeletionRequests,
    ForgottenConversations,
    PrivacyHandlers,
    PrivacyNotice,
)
from bot.commands.recap import Recaps
from bot.commands.reports import AnswerReports, ContextView, UsageView
from bot.extras import import_extra
from bot.media.attachment_reader import AttachmentReader
from bot.media.fetching import PublicFetcher
from bot.media.voice_messages import VoiceTranscriber
from bot.memory.extractor import MemoryExtractor
from bot.memory.recall import MemoryRecaller
from bot.memory.summaries import Summarizer
from bot.ports import ConversationMemory, HistoryReader
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.service.messaging import MessagingContainer
from bot.service.options import Role
from bot.service.policy import list_recipients
from bot.settings import collect_secrets
from bot.storage.extractions import SqlExtractions
from bot.storage.retention import FORGOTTEN_RETENTION_SECONDS, retention_start
from bot.storage.summaries import SqlSummaries
from bot.storage.web_channels import WebMessageEraser
from bot.telemetry.secret_masker import SecretMasker
from bot.turn.answer import AnswerPipeline
from bot.turn.finishing import TurnServices
from bot.turn.limits.refusals import OperatorNotices, QueueLimit
from bot.turn.limits.slots import Urgency
from bot.turn.limits.spending import BudgetedSummaries
from bot.turn.model_requests import ModelRequests
from bot.turn.prompt_inputs import AnswerTools, ChannelReader, PromptSources
from bot.turn.signals import CONVERSATIONS_TOPIC
from bot.turn.worker import ConversationWorker

_EMBEDDING_MODULE = "bot.prompting.embedding"
_MAX_EXTRA_CONVERSATIONS = 32  # conversations beyond the limit, if a command waits in them
_IDLE_POLL_SECONDS = 0.02


class AnsweringContainer(MessagingContainer, ABC):
    """Creates the command handlers, the services of a turn, and the worker that uses them."""

    # commands

    @cached_property
    def command_handlers(self) -> CommandHandlers:
        resolver, admins, access = self.resolver, self.admins, self.access
        writer, make_answer_url = self.prompt_writer, self.console_links.make_answer_url
        context = ContextView(self.receipts, writer.format, writer.mask, make_answer_url)
        greetings, pairing_codes = Greetings(resolver), PairingCodes(access, self.clock)
        summarizer = self._create_summarizer(Urgency.QUESTION)
        return CommandHandlers(
            *(admins, context, self.decision_log, self.dead_letters, self.privacy_notice),
            *(access, greetings),
            SettingMenus(resolver, self.history_scopes, self.personas),
            HistoryScopeHandlers(self.history_scopes, admins),
            pairing_codes,
            MemoryHandlers(self.recaller, self.conversations, self.characters),
            {spec.kind: spec.commands for spec in self.specs},
            [
                *(self.characters, self.personas, PresetHandlers(resolver, admins, greetings)),
                PrivacyHandlers(self.deletions, admins, resolver, self.privacy_notice, greetings),
                AccessHandlers(access, admins, GRANTABLE_COMMANDS, pairing_codes, self.receive),
                *(NewestQuestionHandlers(admins), AnswerReports(context, admins.admin_ids)),
                UsageView(self.usage_totals, self.budgets, self.spending.applicable_caps),
                Recaps(
                    summarizer, access, self.replies.limits, self.pipeline.model_requests.check_text
                ),
            ],
        )

    @cached_property
    def privacy_notice(self) -> PrivacyNotice:
        settings, backends = self.settings, self.backends

        def find_helpers(provider: str) -> Sequence[str]:
            provider_names = [one for one in (provider, *backends) if one in backends]
            transcribers = [one for one in provider_names if backends[one].can_transcribe]
            moderators = [one for one in provider_names if backends[one].can_moderate]
            return [*transcribers[:1], *moderators[:1]]

        return PrivacyNotice(
            *(self.resolver, self.history_scopes, self.chat_settings),
            settings.history_days,
            settings.effective_receipt_days,
            settings.encrypt_texts,
            partial(list_recipients, settings, find_helpers=find_helpers),
            lambda source: isinstance(self.platforms[source], HistoryReader),
        )

    @cached_property
    def deletions(self) -> DeletionRequests:
        personal_data, history_index = self.personal_data, self.history_index
        scopes, memories = self.history_scopes, self.memories
        return DeletionRequests(
            personal_data, self.personas, history_index, scopes, self.receive, memories
        )

    @cached_property
    def operator_notices(self) -> OperatorNotices:
        surfaces = self.rate_limited_surfaces(is_best_effort=True)
        operator_ids = sorted(self.settings.admins)
        return OperatorNotices(self.notice_limiter, operator_ids, surfaces, self.private_chats)

    @cached_property
    def prompt_writer(self) -> PastPromptWriter:
        settings, mask = self.settings, SecretMasker(collect_secrets(self.settings)).mask
        return PastPromptWriter(settings.providers, settings.data_dir, self.models.renderer, mask)

    # the services of a turn

    @cached_property
    def turn_services(self) -> TurnServices:
        admits_voice = self.answer_limits.admits_voice if self.answer_limits else None
        settings = self.chat_settings  # tells other processes about changes itself
        setting_caches = [settings] if isinstance(settings, ConversationMemory) else []
        web_eraser = WebMessageEraser(
            self.web_channels, self.conversations, self.history_index, self.inbox
        )
        return TurnServices(
            self.conversations,
            [*setting_caches, web_eraser, self.forgotten_conversations],
            self.clock,
            self.resolver,
            self.command_handlers,
            self.pipeline,
            self.replies,
            self.stop_requests,
            self.answer_buttons,
            self.access,
            self.deletions,
            self.arrivals,
            VoiceTranscriber(self.download, self.backends, admits_voice),
            self.decision_log,
            self.message_notes,
            self.explain_silence,
            self.answering_pauses.covers,
            self.restore_filter.is_obsolete,
            self.restore_filter.is_context_only,
            self.notice_limiter,
            self._queue_limit,
            self.command_limits,
        )

    @property
    def _queue_limit(self) -> QueueLimit | None:
        max_waiting = self.settings.limits.waiting_in_conversation
        if self.chats_in_terminal or not max_waiting:
            return None
        return QueueLimit(self.conversations, self.arrivals, self.replies, self.clock, max_waiting)

    @cached_property
    def summarizer(self) -> Summarizer:
        return self._create_summarizer(Urgency.BACKGROUND)

    def _create_summarizer(self, urgency: Urgency) -> Summarizer:
        budget = BudgetedSummaries(self.spending, self.usage_log, self.provider_slots, urgency)
        summaries, remove_turns = SqlSummaries(self.database), self.resolver.remove_opted_out_turns
        return Summarizer(summaries, self.backends, budget.pay_for_summary, remove_turns)

    @cached_property
    def prompt_sources(self) -> PromptSources:
        settings = self.settings
        find_history_start = partial(retention_start, self.clock, settings.history_days)
        fetch_public = PublicFetcher().fetch if settings.fetch_links else None
        return PromptSources(
            self.conversations,
            self.resolver,
            self.personas,
            self.models.retrieve_stories,
            self.summarizer,
            ChannelReader(self.read_before, self.read_thread_starter, find_history_start),
            AttachmentReader(self.download, fetch_public),
            self.backends,
            self.history_index,
            self.recaller,
        )

    @cached_property
    def recaller(self) -> MemoryRecaller:
        budget_share, embedder = self.settings.memory.budget_share, self.models.memory_embedder
        if embedder is None:
            return MemoryRecaller(self.memories, budget_share)
        compare = import_extra(_EMBEDDING_MODULE, "a preset with memories").cosine_similarities
        return MemoryRecaller(self.memories, budget_share, embedder, compare)

    @cached_property
    def extractor(self) -> MemoryExtractor:
        return MemoryExtractor(
            self.recaller,
            SqlExtractions(self.database),
            self.summarizer,
            self.chat_settings,
            self.clock,
            self.resolver.find_consent,
            self.resolver.character_names,
        )

    @cached_property
    def pipeline(self) -> AnswerPipeline:
        models = ModelRequests(
            self.prompt_sources,
            self.backends,
            self.clock,
            self.spending,
            AnswerTools(
                self.conversations,
                self.models.retrieve_stories,
                self.clock,
                random.random,
                self.models.tool_servers,
                self.resolver.remove_opted_out_turns,
                self.replies.limits,
            ),
            self.operator_notices,
            self.provider_slots,
            self.access,
            self.settings.withhold_unchecked,
        )
        return AnswerPipeline(
            *(self.prompt_sources, models, self.replies, self.clock),
            *(self.answer_limits, self.notice_limiter, self.extractor),
        )

    # the worker

    @cached_property
    def worker(self) -> ConversationWorker:
        return ConversationWorker(self.turn_services, self.owner, self.lease_keeper)

    @cached_property
    def forgotten_conversations(self) -> ForgottenConversations:
        return ForgottenConversations(
            lambda: [
                self.conversations.session_windows,
                *(one for one in self.backends.values() if isinstance(one, ConversationMemory)),
            ],
            self.personal_data,
            self.clock,
            FORGOTTEN_RETENTION_SECONDS,
        )

    @cached_property
    def conversation_pool(self) -> KeyedWorkerPool[ClaimedMessage]:
        """The pool that processes the messages of conversations."""
        return KeyedWorkerPool(
            CONVERSATIONS_TOPIC,
            signals=self.signals,
            find_ready_keys=lambda limit: self.conversations.list_ready_conversations(
                limit, self.platforms.keys()
            ),
            claim=self._claim_conversations,
            process=self.worker.process_messages,
            max_concurrent=self.settings.limits.conversations_at_once,
            clock=self.clock,
            all_processes_wake_keys=Role.GATEWAY in self.options.roles,
            extra_urgent_slots=_MAX_EXTRA_CONVERSATIONS,
        )

    async def _claim_conversations(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        # Signals also arrive for bots that only other processes run.
        served_keys = [key for key in keys if parse_source(key) in self.platforms]
        return await self.worker.claim(served_keys) if served_keys else {}

    async def wait_until_idle(self) -> None:
        """Wait until all received messages are answered and all answers are sent."""
        # In this order, because messages move from the first pool to the second one.
        while not (await self.conversation_pool.is_idle() and await self.lane_pool.is_idle()):
            await self.clock.sleep(_IDLE_POLL_SECONDS)
