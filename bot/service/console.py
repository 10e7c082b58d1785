"""Build the console of a process from its parts."""

from collections.abc import Callable, Mapping, Sequence

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.spec import ProviderSettings
from bot.commands.handlers import COMMANDS
from bot.console.access_page import AccessPage
from bot.console.app import Console
from bot.console.gate import RequestGate
from bot.console.login import ConsoleLogins
from bot.console.openapi import ApiDescription
from bot.console.pages import PageRenderer
from bot.console.playground.actions import PlaygroundActions
from bot.console.playground.pages import PlaygroundPages, Preview
from bot.console.presets.copying import PresetCopies, PresetCopyPages
from bot.console.presets.editing import PresetEditing
from bot.console.presets.exporting import PresetExports
from bot.console.presets.file_pages import PresetFilePages
from bot.console.presets.importing import PresetImports
from bot.console.presets.lorebook_pages import LorebookEditing, LorebookPages
from bot.console.presets.preset_api import PresetApi
from bot.console.presets.preset_pages import PresetPages
from bot.console.presets.trial.preview import DraftComposer, DraftPreviews
from bot.console.presets.trial.trial_pages import TrialPages
from bot.console.presets.trial.trials import Ask, DraftTrials
from bot.console.routes import (
    RouteGroup,
)
from bot.console.service.channel_page import ChannelPage
from bot.console.service.channel_report import ChannelReports
from bot.console.service.channels_page import ChannelsPage
from bot.console.service.operation_models import ProviderRow
from bot.console.service.operation_page import OperationPage, TryProvider
from bot.console.service.operation_report import OperationReports
from bot.console.service.setup_page import SETUP_PATH, SetupPage
from bot.console.session_pages import SessionPages
from bot.platforms.registry import imitable_platforms
from bot.platforms.web.incoming import to_said
from bot.ports import AnswerLog, Clock, ConsoleTokens, RateLimits, Receipts
from bot.prompting.presets.preset import Preset
from bot.settings import ConsoleSettings, Settings
from bot.setup.steps import SetupSteps
from bot.storage.console.audit import SqlAuditLog
from bot.storage.sql.database import Database


def make_console(
    settings: ConsoleSettings,
    database: Database,
    tokens: ConsoleTokens,
    rate_limits: RateLimits,
    clock: Clock,
    pages: Sequence[RouteGroup],
    home: str | None = None,
) -> Console:
    """Return the console.

    Args:
        settings: where it is served, and over what.
        database: what is stored.
        tokens: who may log in.
        rate_limits: how often somebody may try to.
        clock: the time.
        pages: the parts that need other parts of the service.
        home: the page after the log-in; None: the first one.
    """
    logins = ConsoleLogins(tokens, rate_limits, clock, settings)
    gate = RequestGate(settings, logins)
    groups = [*pages, AccessPage(tokens, SqlAuditLog(database), clock)]
    home = home or next(item.path for group in groups for item in group.navigation)
    session_pages = SessionPages(logins, gate.cookie, is_https=settings.is_https, home=home)
    return Console(gate, [*groups, session_pages, ApiDescription(groups)])


def provider_rows(
    providers: Mapping[str, ProviderSettings], presets: Mapping[str, Preset]
) -> list[ProviderRow]:
    """Return the providers that are set up, with the presets that each answers for."""
    return [
        ProviderRow(
            name=name,
            kind=provider.kind,
            model=getattr(provider, "model", None),
            max_in_flight=provider.max_in_flight,
            presets=[one.name for one in presets.values() if one.provider == name],
        )
        for name, provider in providers.items()
    ]


def make_playground(actions: PlaygroundActions, preview: Preview, receipts: Receipts) -> RouteGroup:
    """Return the pages on which people talk to characters of the web platform."""
    return PlaygroundPages(
        actions, preview, to_said, receipts, COMMANDS, imitable_platforms(), PageRenderer(())
    )


def make_preset_parts(
    editing: PresetEditing,
    composer: DraftComposer,
    answers: AnswerLog,
    providers: Mapping[str, ProviderSettings],
    ask: Ask,
) -> list[RouteGroup]:
    """Return the pages of presets, and their API."""

    def is_local(preset: Preset) -> bool:
        return isinstance(providers.get(preset.provider), LlamaCppSettings)

    files = PresetFilePages(PresetImports(editing, is_local), PresetExports(editing))
    previews = DraftPreviews(editing, composer, answers)
    pages = PresetPages(editing, previews, list(providers))
    trials = TrialPages(DraftTrials(previews, ask))
    copies = PresetCopyPages(PresetCopies(editing))
    lorebooks = LorebookPages(LorebookEditing(editing))
    api = PresetApi(editing, previews)
    return [pages, files, trials, copies, lorebooks, api]


def make_channel_pages(reports: ChannelReports) -> list[RouteGroup]:
    """Return the list of channels and the page of each."""
    default = reports.resolver.default.name
    return [ChannelsPage(reports.state, default), ChannelPage(reports)]


def make_operation_page(
    reports: OperationReports, try_provider: TryProvider, mask: Callable[[str], str]
) -> RouteGroup:
    """Return the page of the operation."""
    return OperationPage(reports, try_provider, mask, PageRenderer(()), reports.clock)


def make_setup_page(
    steps: SetupSteps, database: Database, mask: Callable[[str], str], clock: Clock
) -> RouteGroup:
    """Return the page of the set-up."""
    return SetupPage(steps, SqlAuditLog(database), mask, clock)


def first_page(settings: Settings) -> str | None:
    """Return where a log-in leads: to the set-up until a platform is set; None: the first page."""
    return None if settings.configured_platforms else SETUP_PATH
