"""What receives messages: the platforms of this process, one process at a time, and the intake."""

from collections.abc import Mapping
from functools import cached_property

from bot.console.server import AddRoutes
from bot.console.webhooks import webhook_routes
from bot.intake.intake import InboxIntake
from bot.ports import Platform, ShardedPlatform, WebhookReceiver
from bot.service.exclusive_role import ExclusivePlatform, SharedShards
from bot.service.options import Role
from bot.service.parts.queue import QueueParts
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.service.platform_supervisor import PlatformSupervisor
from bot.telemetry.metrics import HELD_ROLES


class ReceivingParts:
    """What receives messages and stores them."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        requests: RequestParts,
        queue: QueueParts,
        platforms: Mapping[str, Platform],
    ) -> None:
        self._context = context
        self._stored = stored
        self._requests = requests
        self._queue = queue
        self._platforms = platforms

    @cached_property
    def receivers(self) -> Mapping[str, Platform]:
        """The platforms as messages are received from them: one process at a time."""
        if Role.GATEWAY not in self._context.options.roles:
            return {}
        if self._context.is_alone or self._context.is_in_terminal:
            for source in self._platforms:  # nobody else can hold it
                HELD_ROLES.labels(f"receive {source}").set(1)
            return self._platforms
        return {
            source: self._shared_receiver(source, platform)
            for source, platform in self._platforms.items()
        }

    def _shared_receiver(self, source: str, platform: Platform) -> Platform:
        if isinstance(platform, ShardedPlatform):
            owner, leases = self._context.owner, self._stored.role_leases
            return SharedShards(platform, source, owner, leases, self._context.clock)
        return ExclusivePlatform(platform, self._stored.exclusive_role(f"receive {source}"))

    @cached_property
    def supervisor(self) -> PlatformSupervisor:
        companions = [spec.kind for spec in self._context.specs if spec.is_companion]
        return PlatformSupervisor(
            self.receivers.values(),
            self._intake,
            self._context.clock,
            self._context.announce,
            companions,
        )

    @cached_property
    def _intake(self) -> InboxIntake:
        return InboxIntake(
            self._stored.inbox,
            self._queue.wake,
            self._queue.announce,
            self._requests.history_router,
            self._queue.restored.keep,
        )

    @property
    def webhook_routes(self) -> AddRoutes:
        """What platforms call; every process that receives takes calls, also one on standby."""
        called = [self._platforms[source] for source in self.receivers]
        return webhook_routes(
            [one for one in called if isinstance(one, WebhookReceiver)], self._intake
        )
