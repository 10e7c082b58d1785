"""Creates the console's pages; imported only in processes that serve the console."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.incoming import source_name
from bot.commands.handlers import COMMANDS
from bot.console.access_pages import AccessPage, PolicyPage, SessionPages
from bot.console.answer_pages import AnswerPages
from bot.console.app import Console, RequestGate
from bot.console.channels import ChannelPage, ChannelsPage
from bot.console.home import HomePage
from bot.console.login import ConsoleLogins
from bot.console.memory_page import MemoryPage
from bot.console.openapi import ApiDescription
from bot.console.operation import OperationPage
from bot.console.operator_requests import (
    OperatorRequests,
    PromptReplay,
    find_trial_preset,
    try_preset,
)
from bot.console.pages import DisplayNames
from bot.console.playground import PlaygroundPages
from bot.console.presets.editing import PresetEditor
from bot.console.presets.files import PresetImports
from bot.console.presets.pages import PresetPages
from bot.console.presets.preview import DraftPreviews
from bot.console.prompt_preview import DraftComposer, PromptPreview
from bot.console.routes import RouteGroup
from bot.console.server import Probe
from bot.console.setup_page import SETUP_PATH, SetupPage
from bot.platforms.registry import platforms_to_imitate
from bot.platforms.web import to_incoming_message
from bot.ports import Clock, RateLimits
from bot.prompting.presets.files import open_presets_folder
from bot.service.backends import find_preset_problems
from bot.service.container import Container
from bot.service.policy import describe_policy
from bot.settings import ConsoleSettings, Settings
from bot.setup import SetupSteps, platforms_using_tokens
from bot.storage.database import Database
from bot.storage.events import EventLog
from bot.storage.operation import AuditLog
from bot.storage.reports import ServiceState
from bot.storage.tokens import ConsoleTokens
from bot.storage.web_channels import HistoryCopier
from bot.telemetry.logs import RECENT_EVENTS
from bot.texts.text import Text, translatable


class ConsoleContainer:
    """Creates the console's pages and the services that they use."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = ServiceState(container.database, container.clock)

    def make_console(self, probes: Mapping[str, Probe]) -> Console:
        """Return the console; `probes` are the checks for /readyz."""
        container, home_path = self._container, choose_first_page(self._container.settings)
        return make_console(
            container.settings.console,
            container.database,
            container.console_tokens,
            container.rate_limits,
            container.clock,
            self._create_pages(probes),
            home_path,
            DisplayNames(
                self._state, container.web_channels, container.clock, self._read_preset_faces
            ),
        )

    def _create_pages(self, probes: Mapping[str, Probe]) -> list[RouteGroup]:
        container, editor = self._container, self.preset_editor
        resolver, providers = container.resolver, container.settings.providers
        operation = self._create_operation_page(probes)
        memories = MemoryPage(container.memories, container.audit_log)
        local_names = {name for name, one in providers.items() if isinstance(one, LlamaCppSettings)}
        return [
            HomePage(container.usage_totals, operation, self._read_setup_state, container.clock),
            PlaygroundPages(
                container.web_channels,
                HistoryCopier(container.database, container.conversations),
                resolver,
                container.clock,
                PromptPreview(
                    container.prompt_sources,
                    resolver,
                    container.conversations,
                    container.spending,
                    container.clock,
                    container.history_router.preview_route,
                ).preview,
                to_incoming_message,
                *(container.answer_log, editor.find_picture_path, COMMANDS, platforms_to_imitate()),
            ),
            AnswerPages(
                container.answer_log,
                container.prompt_writer,
                container.backends,
                container.preset_versions,
                providers,
                resolver.presets,
                container.preset_drafts,
                self.replay.replay,
                *(container.message_notes, container.clock),
            ),
            PresetPages(
                editor,
                self._draft_previews,
                PresetImports(editor, lambda preset: preset.provider in local_names),
                self._operator_requests.send,
                *(list(providers), self._count_preset_uses, memories),
            ),
            ChannelsPage(self._state, resolver.default_preset.name),
            ChannelPage(
                container.answer_log,
                self._state,
                resolver,
                container.history_scopes,
                container.budgets,
                container.spending.channel_caps,
                container.web_channels,
                container.receive,
                self._list_chat_patterns(),
                *(container.audit_log, container.rate_limits, container.clock),
            ),
            memories,
            operation,
            SetupPage(self.setup_steps, container.audit_log, container.prompt_writer.mask),
            PolicyPage(lambda: describe_policy(container.settings, resolver.presets.values())),
        ]

    async def _count_preset_uses(self) -> Mapping[str, int]:
        settings = await self._state.chat_settings()
        chosen_presets = (set(one.value.splitlines()) for one in settings if one.key == "preset")
        return Counter(name.partition("\t")[0] for names in chosen_presets for name in names)

    def _read_preset_faces(self) -> Mapping[str, tuple[str, str]]:
        return {
            name: (preset.character_name, self.preset_editor.find_picture_path(name))
            for name, preset in self._container.resolver.presets.items()
        }

    def _read_setup_state(self) -> Mapping[Text | str, bool]:
        settings = self._container.settings
        used_providers = {one["name"] for one in self._configured_providers if one["presets"]}
        return {
            translatable("Model"): bool(used_providers),
            **{
                spec.kind.title(): spec in settings.configured_platforms
                for spec in platforms_using_tokens()
            },
            translatable("Budgets"): bool(settings.budgets.model_fields_set),
        }

    def _list_chat_patterns(self) -> Mapping[str, str]:
        bot_ids = self._container.resources.bot_ids
        return {
            source_name(one.kind, bot_ids.get(one.kind, "")): one.chat_pattern
            for one in self._container.specs
        }

    @cached_property
    def replay(self) -> PromptReplay:
        return PromptReplay(
            self._operator_requests,
            self._container.resolver.presets,
            self._container.answer_log,
            self._draft_previews.find_prepared_preset,
            self._draft_composer,
            self._container.published_presets.prepare_preset,
        )

    @cached_property
    def preset_editor(self) -> PresetEditor:
        container = self._container
        return PresetEditor(
            container.resolver,
            container.preset_versions,
            container.preset_drafts,
            container.audit_log,
            container.clock,
            partial(find_preset_problems, settings=container.settings),
            partial(open_presets_folder, container.settings.presets_dir),
            container.published_presets.prepare_preset,
            container.published_presets.announce_changes,
        )

    @cached_property
    def _draft_previews(self) -> DraftPreviews:
        return DraftPreviews(self.preset_editor, self._draft_composer, self._container.answer_log)

    @cached_property
    def _draft_composer(self) -> DraftComposer:
        container = self._container
        return DraftComposer(container.prompt_sources, container.resolver, container.conversations)

    def _create_operation_page(self, probes: Mapping[str, Probe]) -> OperationPage:
        container = self._container
        return OperationPage(
            probes,
            self._state,
            self._configured_providers,
            container.backends,
            container.provider_slots.waiting_count,
            container.rate_limits,
            RECENT_EVENTS,
            container.nodes,
            container.pauses,
            container.dead_letters,
            container.message_notes,
            container.owner,
            partial(find_trial_preset, container.resolver.presets),
            partial(try_preset, self._operator_requests),
            container.prompt_writer.mask,
            container.clock,
        )

    @property
    def _configured_providers(self) -> list[Mapping[str, object]]:
        """Return a row per configured provider, with the presets that use it."""
        presets = self._container.resolver.presets.values()
        return [
            {
                "name": name,
                "kind": provider.kind,
                "model": getattr(provider, "model", None),
                "presets": [one.name for one in presets if one.provider == name],
                "max_in_flight": provider.max_in_flight,
            }
            for name, provider in self._container.settings.providers.items()
        ]

    @cached_property
    def setup_steps(self) -> SetupSteps:
        return SetupSteps(self._container.settings, Path(".env"))

    @cached_property
    def _operator_requests(self) -> OperatorRequests:
        container = self._container
        return OperatorRequests(
            container.backends,
            container.spending,
            container.provider_slots,
            container.usage_log,
            container.clock,
        )


def make_console(
    settings: ConsoleSettings,
    database: Database,
    tokens: ConsoleTokens,
    rate_limits: RateLimits,
    clock: Clock,
    pages: Sequence[RouteGroup],
    home_path: str | None = None,
    display_names: DisplayNames | None = None,
) -> Console:
    """Return a console with these pages; after login, it shows `home_path` or the first page."""
    logins = ConsoleLogins(tokens, rate_limits, clock, settings)
    gate = RequestGate(settings, logins)
    audit_log, event_log = AuditLog(database, clock), EventLog(database, clock)
    groups = [*pages, AccessPage(tokens, audit_log, event_log)]
    home_path = home_path or next(item.path for group in groups for item in group.navigation)
    session_pages = SessionPages(logins, gate.cookie_name, settings.is_https, home_path)
    return Console(gate, [*groups, session_pages, ApiDescription(groups)], display_names)


def choose_first_page(settings: Settings) -> str | None:
    """Return the setup page's path if no platform is configured, or None for the default page."""
    return None if settings.configured_platforms else SETUP_PATH
