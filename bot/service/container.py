"""The composition root: creates all components of a process, each when first needed.

Only this class imports the platforms; its base classes (answering.py, messaging.py, stores.py)
import no plug-ins. Nothing here does I/O: resources.py opens resources, and run.py runs components.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from typing_extensions import override

from bot import __version__
from bot.chat.incoming import source_name
from bot.commands.handlers import COMMAND_NAMES, COMMANDS, MESSAGE_COMMANDS
from bot.errors import PluginFailed, StoreError
from bot.platforms.registry import create_platform, find_platform_limits
from bot.platforms.spec import PlatformContext
from bot.ports import Platform
from bot.runtime.terminal import terminal_locale
from bot.service.answering import AnsweringContainer
from bot.service.jobs import (
    Job,
    JobGroup,
    ProviderNotices,
    make_heartbeat_jobs,
    measure_loop_lag,
    measure_queues,
    repeat,
    share_reports,
)
from bot.service.options import Role
from bot.service.published_presets import PublishedPresets
from bot.storage.reports import ServiceState
from bot.telemetry.logs import RECENT_EVENTS
from bot.turn.signals import MissedSignalPoller

_DRAIN_SECONDS = 10.0
"""The maximum time for finishing one role's work after a termination signal."""
_DRAIN_POLL_SECONDS = 0.05
_SECONDS_BETWEEN_MEASUREMENTS = 10.0
_SECONDS_BETWEEN_POLLS = 2.0


class Container(AnsweringContainer):
    @cached_property
    @override
    def platforms(self) -> Mapping[str, Platform]:
        context = PlatformContext(
            commands=COMMANDS,
            command_names=COMMAND_NAMES,
            message_commands=MESSAGE_COMMANDS,
            find_press_form=self.find_press_form,
            find_command_form=self.find_command_form,
            suggest_presets=self.resolver.complete,
            suggest=self.suggest,
            wait_until_idle=self.wait_until_idle,
            clock=self.clock,
            cursor_store=self.inbox,
            data_dir=self.settings.data_dir,
            answerable_seconds=self.settings.delivery.answerable_minutes * 60,
            find_press_refusal=self.answer_buttons.find_refusal_reason,
            is_refused=self.is_refused,
            find_limits=find_platform_limits,
            web_channels=self.web_channels,
            chat=self.resolver.default_preset.id if self.options.preset else "",
            locale=terminal_locale(),
            take_lease=None if self.runs_alone else self.role_leases.take,
        )
        platforms = {}
        for spec in self.specs:
            bot_id, settings = self.resources.bot_ids.get(spec.kind, ""), self.settings
            bot_context = replace(context, bot_id=bot_id)
            try:
                platform = create_platform(spec, settings.platform_settings(spec), bot_context)
            except PluginFailed as error:
                self.report(str(error))
                continue
            platforms[source_name(spec.kind, bot_id)] = platform
        return platforms

    @cached_property
    def published_presets(self) -> PublishedPresets:
        return PublishedPresets(self)

    @cached_property
    def job_groups(self) -> Sequence[JobGroup]:
        """The jobs of this process's roles, in the order in which they handle a message."""
        roles = self.options.roles
        role_names = ",".join(role for role in Role if role in roles)
        jobs: list[Job] = [partial(measure_loop_lag, self.clock)]
        if roles & {Role.WORKER, Role.SENDER}:
            measure_ages = partial(measure_queues, ServiceState(self.database, self.clock), roles)
            jobs.append(partial(repeat, measure_ages, self.clock, _SECONDS_BETWEEN_MEASUREMENTS))
        if not self.runs_alone:
            share_process_reports = partial(share_reports, self.nodes, self.owner, self.backends)
            jobs.append(partial(share_process_reports, RECENT_EVENTS, self.clock))
        return [
            JobGroup(start=self.restore_filter.load_newest_restore),
            *([self._worker_jobs()] if Role.WORKER in roles else []),
            *([self._sender_jobs()] if Role.SENDER in roles else []),
            make_heartbeat_jobs(self.nodes, self.owner, role_names, __version__, self.clock),
            JobGroup(jobs),
        ]

    def _worker_jobs(self) -> JobGroup:
        pool, worker = self.conversation_pool, self.worker

        async def release_claims() -> None:
            await self.conversations.release_all(self.owner)
            await self.answering_pauses.refresh()

        async def drain() -> None:
            worker.stop_after_current_messages()
            await pool.drain(_DRAIN_SECONDS)

        jobs = [pool.run, worker.leases.run, self.stop_requests.run, self.summarizer.run]
        jobs += [self.extractor.run, self.decision_log.run]
        pollers: list[Job] = [self.answering_pauses.refresh]
        if not self.runs_alone:
            poller = MissedSignalPoller(self.inbox, self.stop_requests, self.arrivals)
            pollers += [poller.poll, self.forgotten_conversations.drop_deleted_conversations]
        jobs += [partial(repeat, poll, self.clock, _SECONDS_BETWEEN_POLLS) for poll in pollers]
        return JobGroup(jobs, release_claims, drain)

    def _sender_jobs(self) -> JobGroup:
        lane_pool = self.lane_pool

        async def drain() -> None:
            """Send all queued messages; if other processes can do that, only those in progress."""
            if not self.runs_alone:
                await lane_pool.drain(_DRAIN_SECONDS)
                return
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    while not await lane_pool.is_idle():
                        await self.clock.sleep(_DRAIN_POLL_SECONDS)
            await lane_pool.drain(0)

        jobs: list[Job] = [
            lane_pool.run,
            partial(self._sender.late_duplicate_remover.run, lane_pool.wake),
            self.delete_expired_rows,
            self.delete_unused_pictures,
        ]
        if self.settings.events.url is not None:
            jobs.append(self.send_events)
        return JobGroup(jobs, self.outbox.release_all, drain)

    @cached_property
    def provider_notices(self) -> ProviderNotices:
        """Reports the state of the presets' providers for /readyz."""
        return ProviderNotices(self.resolver.presets.values, self.backends, self.options.roles)
