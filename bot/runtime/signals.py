"""Signals inside one process: what the embedded installation uses."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from typing_extensions import override

from bot.ports import Signals


class InProcessSignals(Signals):
    """Calls the subscribers of a topic at once."""

    def __init__(self) -> None:
        self._handlers: defaultdict[str, list[Callable[[Sequence[str]], None]]] = defaultdict(list)

    @override
    def subscribe(
        self,
        topic: str,
        handler: Callable[[Sequence[str]], None],
        elsewhere: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._handlers[topic].append(handler)

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        for handler in self._handlers[topic]:
            handler(keys)

    @property
    @override
    def reaches_others(self) -> bool:
        return True

    @override
    async def find_problem(self) -> str | None:
        return None
