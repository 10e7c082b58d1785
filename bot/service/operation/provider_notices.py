"""Say which providers of presets are not served, or do not answer this worker, for /readyz."""

from collections.abc import Callable, Collection, Mapping, Sequence

from bot.chat.console.operation import unserved_providers
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, MonitoredBackend, NodeRegistry
from bot.prompting.presets.preset import Preset
from bot.service.roles import Role
from bot.service.run_options import RunOptions


@frozen_dataclass
class ProviderNotices:
    """Looks at what processes report and at circuit breakers, and asks no provider.

    Args:
        nodes: the processes of the installation.
        presets: returns those that may answer.
        backends: those that this process asks; none where it does not answer.
        options: which providers it serves.
    """

    nodes: NodeRegistry
    presets: Callable[[], Collection[Preset]]
    backends: Mapping[str, Backend]
    options: RunOptions

    async def find(self) -> Sequence[str]:
        """Return a line for each provider that is missing; raises `StoreError`."""
        used = {one.provider for one in self.presets()}
        unserved = unserved_providers(await self.nodes.running(), used)
        return [
            *(f"nobody serves provider {name!r}, which a preset uses" for name in unserved),
            *(f"provider {name!r} does not answer this worker" for name in self._unreachable()),
        ]

    def states(self) -> Mapping[str, str]:
        """Return "ok" or the problem of each provider that this process asks."""
        unreachable = self._unreachable()
        return {
            f"provider {name}": "it does not answer" if name in unreachable else "ok"
            for name in self._served()
        }

    def worker_problem(self) -> str | None:
        """Return why a process that only answers cannot; None: it can, or does more than that.

        A process with other roles goes on receiving messages and serving its pages.
        """
        unreachable = self._unreachable()
        is_all = bool(unreachable) and len(unreachable) == len(self._served())
        if not is_all or self.options.roles != {Role.WORKER}:
            return None
        return f"no provider answers: {', '.join(unreachable)}"

    def _served(self) -> list[str]:
        if Role.WORKER not in self.options.roles:
            return []
        return sorted({one.provider for one in self.presets() if self.options.serves(one)})

    def _unreachable(self) -> list[str]:
        """Return the served providers of which every model that was asked has an open breaker."""
        found: list[str] = []
        for name in self._served():
            backend = self.backends.get(name)
            if isinstance(backend, MonitoredBackend):
                health = backend.model_health()
                if health and all(one.is_paused for one in health):
                    found.append(name)
        return found
