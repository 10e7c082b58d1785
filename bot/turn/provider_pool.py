"""Leave conversations to the workers that serve the provider of their preset.

Which preset answers is known when a message was read, so a worker of a pool claims a conversation
that it does not know, looks, and hands it over. It remembers that for a while.
"""

from collections.abc import Collection, Sequence

import structlog

from bot.chat.incoming import Deleted, ForgetRequested, Incoming
from bot.ports import Clock, Signals
from bot.routing.preset_resolver import PresetResolver
from bot.turn.arrivals import CONVERSATIONS

_log = structlog.get_logger(__name__)
_TOPIC = "handed_over"
_REMEMBERED_SECONDS = 20.0
"""A preset may have been changed, and the signal of that may have been lost."""
_MAX_REMEMBERED = 10_000


class ProviderPool:
    """The conversations of one process that serves some providers only.

    Args:
        providers: those that it serves.
        resolver: says which presets answer in a channel; the first one's provider counts.
        signals: tell the workers of the other pools.
        clock: time.
    """

    def __init__(
        self,
        providers: Collection[str],
        resolver: PresetResolver,
        signals: Signals,
        clock: Clock,
    ) -> None:
        self._providers = frozenset(providers)
        self._resolver = resolver
        self._signals = signals
        self._clock = clock
        self._elsewhere_until: dict[str, float] = {}  # by conversation
        signals.subscribe(_TOPIC, self._take_over)

    def may_claim(self, conversation: str) -> bool:
        """Return whether a conversation may be one of this process."""
        return self._elsewhere_until.get(conversation, 0.0) <= self._clock.monotonic()

    async def serves(self, incoming: Incoming) -> bool:
        """Return whether a message is for this process.

        What only deletes something needs no provider.
        """
        if isinstance(incoming, Deleted | ForgetRequested):
            return True
        return await self._provider_of(incoming) in self._providers

    async def hand_over(self, conversation: str, incoming: Incoming) -> None:
        """Wake the workers that serve the provider; the conversation must be released."""
        provider, now = await self._provider_of(incoming), self._clock.monotonic()
        _log.debug("handed_over", conversation=conversation, provider=provider)
        if len(self._elsewhere_until) >= _MAX_REMEMBERED:
            self._elsewhere_until = {
                key: until for key, until in self._elsewhere_until.items() if until > now
            }
        self._elsewhere_until[conversation] = now + _REMEMBERED_SECONDS
        self._signals.publish(_TOPIC, [f"{provider} {conversation}"])
        self._signals.publish(CONVERSATIONS, [conversation])

    async def _provider_of(self, incoming: Incoming) -> str:
        active = await self._resolver.resolve(incoming.scopes)
        return active.first.preset.provider

    def _take_over(self, handed_over: Sequence[str]) -> None:
        for one in handed_over:
            provider, _, conversation = one.partition(" ")
            if provider in self._providers:
                self._elsewhere_until.pop(conversation, None)
