"""Put the service together from its settings and its open resources: the one composition root.

It makes the platforms and hands them to the groups of parts (bot/service/parts/), which know no
plug-in. Nothing here does I/O: resources.py opens what the parts use, service.py runs them.
"""

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from bot.chat.incoming import source_name
from bot.commands.handlers import COMMAND_NAMES, COMMANDS, MESSAGE_COMMANDS
from bot.platforms.registry import channel_limits, make_platform
from bot.platforms.spec import PlatformContext, PlatformSpec
from bot.ports import Clock, Platform
from bot.runtime.clock import SystemClock
from bot.runtime.terminal_locale import terminal_locale
from bot.service.options import RunOptions
from bot.service.parts.answering import AnsweringParts
from bot.service.parts.commands import CommandParts
from bot.service.parts.console import ConsoleParts
from bot.service.parts.console_links import ConsoleLinks
from bot.service.parts.jobs import JobParts
from bot.service.parts.limits import LimitParts
from bot.service.parts.platform_calls import PlatformCalls
from bot.service.parts.published_presets import PublishedPresets
from bot.service.parts.queue import QueueParts
from bot.service.parts.receiving import ReceivingParts
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.sending import SendingParts
from bot.service.parts.stored import StoredParts
from bot.service.resources import Resources, data_dir_use
from bot.settings import Settings
from bot.storage.data_dir import DataDirUse


class Wiring:
    """The parts of a process in groups; each is built once, when another part first needs it."""

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        specs: Sequence[PlatformSpec],
        progress: Callable[[str], None],
        options: RunOptions,
        clock: Clock | None = None,
    ) -> None:
        """Take what everything is built from.

        Args:
            settings: the settings of the service.
            resources: what was opened for it.
            specs: the platforms to run.
            progress: tells the operator something.
            options: what this run does differently.
            clock: the time; None: that of the system.
        """
        owner = _lease_owner(settings, data_dir_use(specs))
        self.context = RunContext(
            settings, resources, specs, progress, options, clock or SystemClock(), owner
        )
        self.published.follow()

    @cached_property
    def stored(self) -> StoredParts:
        return StoredParts(self.context)

    @cached_property
    def _limits(self) -> LimitParts:
        return LimitParts(self.context, self.stored)

    @cached_property
    def published(self) -> PublishedPresets:
        return PublishedPresets(self.context, self.stored)

    @cached_property
    def platforms(self) -> Mapping[str, Platform]:
        """By `Address.source`, which names the bot as well where it is not the first one."""
        run, forms = self.context, self._requests.forms
        resolver = run.resources.resolver
        context = PlatformContext(
            commands=COMMANDS,
            command_names=COMMAND_NAMES,
            message_commands=MESSAGE_COMMANDS,
            text_to_edit=forms.text_to_edit,
            press_form=forms.press_form,
            complete_preset=resolver.complete,
            wait_until_idle=self._wait_until_idle,
            clock=run.clock,
            cursors=self.stored.inbox,
            data_dir=run.settings.data_dir,
            answerable_seconds=run.settings.delivery.answerable_minutes * 60,
            press_refusal=forms.press_refusal,
            limits_of=channel_limits,
            web_channels=self.stored.web_channels,
            chat=resolver.default.id if run.options.preset else "",
            locale=terminal_locale(),
            leases=None if run.is_alone else self.stored.role_leases,
        )
        platforms = {}
        for spec in run.specs:
            bot_id = run.resources.bot_ids.get(spec.kind, "")
            its_context = replace(context, bot_id=bot_id)
            platform = make_platform(spec, run.settings.platform(spec), its_context)
            platforms[source_name(spec.kind, bot_id)] = platform
        return platforms

    async def _wait_until_idle(self) -> None:
        await self.jobs.wait_until_idle()

    @cached_property
    def _calls(self) -> PlatformCalls:
        return PlatformCalls(lambda: self.platforms, self.context.resources.resolver)

    @cached_property
    def _requests(self) -> RequestParts:
        return RequestParts(self.context, self.stored, self._limits, self._calls)

    @cached_property
    def _queue(self) -> QueueParts:
        return QueueParts(self.context, self.stored, self._requests, self.platforms)

    @cached_property
    def receiving(self) -> ReceivingParts:
        return ReceivingParts(
            self.context, self.stored, self._requests, self._queue, self.platforms
        )

    @cached_property
    def sending(self) -> SendingParts:
        return SendingParts(self.context, self.stored, self._limits, self.platforms)

    @cached_property
    def _commands(self) -> CommandParts:
        return CommandParts(
            self.context,
            self.stored,
            self._limits,
            self._requests,
            self._queue,
            self.sending,
            self.console_links,
        )

    @cached_property
    def answering(self) -> AnsweringParts:
        return AnsweringParts(
            self.context,
            self.stored,
            self._limits,
            self._calls,
            self._requests,
            self._queue,
            self.sending,
            self._commands,
        )

    @cached_property
    def jobs(self) -> JobParts:
        return JobParts(self.context, self.stored, self._queue, self.sending, self.answering)

    @cached_property
    def console_links(self) -> ConsoleLinks:
        return ConsoleLinks(self.stored.console_tokens, self.context.clock)

    @cached_property
    def console(self) -> ConsoleParts:
        return ConsoleParts(
            self.context,
            self.stored,
            self._limits,
            self._requests,
            self._queue,
            self._commands,
            self.answering,
            self.published,
        )


def _lease_owner(settings: Settings, use: DataDirUse) -> str:
    """Name this process; on SQLite the name is the same after a restart."""
    if settings.sqlalchemy_url.startswith("sqlite"):
        return "embedded" if use is DataDirUse.SERVICE else "terminal"
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
