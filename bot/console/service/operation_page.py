"""Operation: what works, what waits, who holds which role, and what answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.console.health import Probe, run_probes
from bot.console.routes import ConsolePart, ConsoleRequest, NavigationItem, Page, Route
from bot.ports import Clock, ServiceState
from bot.texts.text import translatable

_PROBE_SECONDS = 2.0


class LeaseRow(BaseModel):
    """A role that only one process has at a time."""

    role: str
    owner: str
    seconds_left: float = Field(description="Negative: nobody has it.")


class ProviderRow(BaseModel):
    """A provider that is set up."""

    name: str
    kind: str
    model: str | None
    presets: list[str] = Field(description="The presets that it answers for.")


class OperationState(BaseModel):
    """What the service is doing."""

    parts: dict[str, str] = Field(description='"ok" for what works, else why it does not.')
    conversations: int = Field(description="With unanswered messages.")
    held: int = Field(description="Of them, those that are being answered.")
    oldest_seconds: float | None = Field(description="How long the oldest of them waits.")
    lanes: int = Field(description="Chats with messages that are not sent yet.")
    unsent: int = Field(description="Those messages.")
    leases: list[LeaseRow]
    providers: list[ProviderRow]


class OperationPage:
    """Shows the state of the service.

    Args:
        probes: what /readyz asks.
        state: what is stored.
        providers: the providers that are set up.
        clock: the time.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        state: ServiceState,
        providers: Sequence[ProviderRow],
        clock: Clock,
    ) -> None:
        self._probes = probes
        self._state = state
        self._providers = providers
        self._clock = clock

    @property
    def part(self) -> ConsolePart:
        return ConsolePart(
            (
                Route(
                    path="/operation",
                    handler=self._page,
                    scope=Scope.READ,
                    summary="The page of the operation.",
                ),
                Route(
                    path="/api/v1/operation",
                    handler=self._report,
                    scope=Scope.READ,
                    summary="What works, what waits, and who does what.",
                    answer=OperationState,
                ),
            ),
            (NavigationItem("/operation", translatable("Operation"), "operation"),),
        )

    async def _report(self, _: ConsoleRequest) -> OperationState:
        now = self._clock.now()
        queues = asdict(await self._state.queues())
        oldest = queues.pop("oldest_since")
        return OperationState(
            **queues,
            parts=dict(await run_probes(self._probes, _PROBE_SECONDS)),
            oldest_seconds=None if oldest is None else max(0.0, now - oldest),
            leases=[
                LeaseRow(role=one.role, owner=one.owner, seconds_left=one.until - now)
                for one in await self._state.role_leases()
            ],
            providers=list(self._providers),
        )

    async def _page(self, request: ConsoleRequest) -> Page:
        return Page("operation.html", {"state": await self._report(request)})
