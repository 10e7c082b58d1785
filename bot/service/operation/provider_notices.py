"""Say which providers of presets do not answer this worker, for /readyz."""

from collections.abc import Callable, Collection, Mapping, Sequence

from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, MonitoredBackend
from bot.prompting.presets.preset import Preset
from bot.service.options import Role


@frozen_dataclass
class ProviderNotices:
    """Looks at circuit breakers, and asks no provider.

    Args:
        presets: returns those that may answer.
        backends: those that this process asks; none where it does not answer.
        roles: what this process does.
    """

    presets: Callable[[], Collection[Preset]]
    backends: Mapping[str, Backend]
    roles: Collection[Role]

    def find(self) -> Sequence[str]:
        """Return a line for each provider that does not answer."""
        return [f"provider {name!r} does not answer this worker" for name in self._unreachable()]

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
        if not is_all or self.roles != {Role.WORKER}:
            return None
        return f"no provider answers: {', '.join(unreachable)}"

    def _served(self) -> list[str]:
        if Role.WORKER not in self.roles:
            return []
        return sorted({one.provider for one in self.presets()})

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
