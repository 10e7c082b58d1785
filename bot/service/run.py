"""Run the service: open resources, start, serve until a signal, drain, close."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module  # noqa: TID251 # for what few installations need
from typing import Any

from bot.console.operator_requests import PromptReplay
from bot.console.server import (
    Probe,
    RouteAdder,
    make_health_routes,
    publish_console_address,
    run_probes,
    serve_http,
)
from bot.platforms.registry import terminal_platforms
from bot.platforms.spec import PlatformSpec
from bot.runtime.operating_system import ignore_hang_up
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.jobs import Job, log_outages
from bot.service.options import Role, RunOptions
from bot.service.platform_supervisor import Receiver
from bot.service.resources import open_resources
from bot.settings import Settings

_DEFAULT_OPTIONS = RunOptions()
_PROBE_TIMEOUT_SECONDS = 2.0


class Service:
    """One process of the service, from its start to its shutdown; `running` creates it."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self._presets = container.published_presets
        self._is_stopping = False

    async def serve(self) -> None:
        """Run until a signal or until all platforms end, then drain; raises `PlatformFatal`."""
        container, job_groups = self.container, self.container.job_groups
        for group in job_groups:
            await group.start()
        async with self._serve_http():
            jobs_to_run: list[Job] = [
                container.supervisor.run_until_stopped,
                partial(log_outages, self._check_needed_servers, container.clock),
                self._presets.watch_files,
                *(job for group in job_groups for job in group.jobs),
            ]
            if not container.runs_alone:
                jobs_to_run.append(self._presets.watch_other_processes)
            job_tasks = [asyncio.ensure_future(job()) for job in jobs_to_run]
            try:
                ended_tasks, _ = await asyncio.wait(job_tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended_tasks:
                    await task  # raises the error of a failed job
            finally:
                await self._finish_work()
                await container.supervisor.close()
                await cancel_and_wait(job_tasks)

    @contextlib.asynccontextmanager
    async def _serve_http(self) -> AsyncIterator[None]:
        """Serve health checks and the console during the block, if this process has a port."""
        container, settings = self.container, self.container.settings
        if not container.options.serves_http:
            yield
            return
        routes, may_change_port = self.http_routes(), container.may_take_any_port
        async with serve_http(settings.console, routes, may_change_port=may_change_port) as address:
            notice = f"health at {address}/readyz"
            port = settings.console.port
            if port == 0 or address.endswith(f":{port}"):
                container.announce(notice)
            else:
                container.report(f"port {port} is in use; {notice}")
            if not container.has_console:
                yield
                return
            with publish_console_address(settings.data_dir, address):
                container.console_links.address = str(settings.console.url or address)
                await self._print_login_link()
                try:
                    yield
                finally:
                    await self.console.setup_steps.close()

    def http_routes(self) -> Sequence[RouteAdder]:
        """Return all HTTP routes of this process."""
        container, probes = self.container, self._make_probes()
        notices = container.provider_notices.find
        routes = [make_health_routes(probes, list_notices=notices), container.webhook_routes]
        if container.has_console:
            routes.append(self.console.make_console(probes).add_routes)
        return routes

    @cached_property
    def console(self) -> Any:
        """The container of the console's pages, imported on first use."""
        return _import_console(self.container)

    async def _print_login_link(self) -> None:
        """Print a login link if a person reads the output; logs must not contain it."""
        container = self.container
        if container.chats_in_terminal or sys.stderr.isatty():
            login_link = await container.console_links.make_login_link()
            container.report(f"log in to the console once, within 10 minutes:\n{login_link}")

    async def _finish_work(self) -> None:
        """Finish the work in progress: first answers, then queued outgoing messages."""
        self._is_stopping = True
        for group in self.container.job_groups:
            await group.finish_work()

    def _make_probes(self) -> dict[str, Probe]:
        """Return the probes for /readyz; while stopping, no role is ready."""
        roles = sorted(self.container.options.roles)
        return {
            **self._make_server_probes(),
            **{str(role): partial(self._find_readiness_problem, role) for role in roles},
        }

    def _make_server_probes(self) -> dict[str, Probe]:
        container = self.container
        receiver_items = container.receivers.items()
        has_redis = container.settings.redis_url is not None
        return {
            "database": container.find_database_problem,
            **({"redis": container.signals.find_problem} if has_redis else {}),
            **{name: partial(self._find_platform_problem, one) for name, one in receiver_items},
        }

    async def _check_needed_servers(self) -> Mapping[str, str]:
        """Return "ok" or the problem of each server that this process depends on."""
        server_states = await run_probes(self._make_server_probes(), _PROBE_TIMEOUT_SECONDS)
        return {**server_states, **self.container.provider_notices.describe_states()}

    async def _find_platform_problem(self, receiver: Receiver) -> str | None:
        return self.container.supervisor.find_problem(receiver)

    async def _find_readiness_problem(self, role: Role) -> str | None:
        if self._is_stopping:
            return "stopping"
        return self.container.provider_notices.worker_problem() if role is Role.WORKER else None


def _import_console(container: Container) -> Any:
    """Create the console's container; its modules are imported only when it is needed."""
    return import_module("bot.service.console").ConsoleContainer(container)


@contextlib.asynccontextmanager
async def open_service(
    settings: Settings,
    report: Callable[[str], None],
    platforms: Sequence[PlatformSpec] | None = None,
    options: RunOptions = _DEFAULT_OPTIONS,
) -> AsyncIterator[Service]:
    """Open a service on `platforms`; by default, on the configured ones or in the terminal."""
    if not sys.stderr.isatty():  # a hang-up of the terminal must end the process
        ignore_hang_up(asyncio.get_running_loop())
    specs = platforms or settings.configured_platforms or terminal_platforms()
    async with contextlib.AsyncExitStack() as stack:
        resources_context = open_resources(settings, specs, report, options)
        resources = await stack.enter_async_context(resources_context)
        container = Container(settings, resources, specs, report, options)
        for platform in container.platforms.values():
            stack.push_async_callback(platform.close)
        yield Service(container)


@contextlib.asynccontextmanager
async def open_replay(
    settings: Settings, report: Callable[[str], None]
) -> AsyncIterator[PromptReplay]:
    """Open a replay of stored answers, even while a service runs; raises like `open_resources`."""
    options = RunOptions(serves_http=False, answers_messages=False)
    async with open_resources(settings, (), report, options) as resources:
        container = Container(settings, resources, (), report, options)
        prompt_replay: PromptReplay = _import_console(container).replay
        yield prompt_replay
