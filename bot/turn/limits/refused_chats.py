"""Spend nothing on answers that a chat refuses: for a while after a refusal none is made there."""

from collections import OrderedDict
from collections.abc import Sequence

import structlog

from bot.chat.incoming import Said
from bot.commands.notes.admin_notes import AdminNotes
from bot.ports import Clock, Signals
from bot.texts.text import Text, translatable
from bot.turn.limits.rare_notices import RareNotices

REFUSED_SECONDS = 5.0
_SECONDS_BETWEEN_NOTES = 6 * 3600.0
_MAX_CHATS = 1000
_TOPIC = "refused_chats"
_log = structlog.get_logger(__name__)


class RefusedChats:
    """The lanes in which the platform has just refused a message of the bot, and why."""

    def __init__(
        self,
        clock: Clock,
        signals: Signals,
        notices: RareNotices,
        admin_notes: AdminNotes | None = None,
    ) -> None:
        self._clock = clock
        self._notices = notices
        self._admin_notes = admin_notes
        self._refused: OrderedDict[str, tuple[float, str]] = OrderedDict()
        signals.subscribe(_TOPIC, self._note)

    async def covers(self, said: Said) -> bool:
        """Return whether an answer would be refused; then it is logged, and the admins know.

        Who writes in private has let the bot write again, if they had blocked it.
        """
        refused_at, reason = self._refused.get(said.address.lane, (None, ""))
        if (
            said.is_private
            or refused_at is None
            or self._clock.monotonic() - refused_at >= REFUSED_SECONDS
        ):
            return False
        _log.warning("not_answered_in_refused_chat", lane=said.address.lane, reason=reason)
        await self.tell(said)
        return True

    async def tell(self, said: Said) -> None:
        """Tell who reads notes about a chat that it refuses answers, once in six hours."""
        _, reason = self._refused.get(said.address.lane, (0.0, ""))
        readers = await self._admin_notes.readers(said) if self._admin_notes is not None else None
        if self._admin_notes is None or readers is None or not reason:
            return
        if await self._notices.is_due(f"refused:{said.address.lane}", _SECONDS_BETWEEN_NOTES):
            await self._admin_notes.send(readers, said, self.explain(said))

    def explain(self, said: Said) -> Text:
        """Say why a message is not answered."""
        _, reason = self._refused.get(said.address.lane, (0.0, ""))
        return translatable(
            "⚠ This chat refuses my answers: “{reason}” I try again when somebody asks, every"
            " {seconds} s at most.",
            reason=reason or "…",
            seconds=round(REFUSED_SECONDS),
        )

    def _note(self, keys: Sequence[str]) -> None:
        for key in keys:
            lane, _, reason = key.partition(" ")
            self._refused[lane] = self._clock.monotonic(), reason
            self._refused.move_to_end(lane)
            if len(self._refused) > _MAX_CHATS:
                self._refused.popitem(last=False)


def publish_refusal(signals: Signals, lane: str, reason: str) -> None:
    """Tell all workers that the platform has refused a message in a lane."""
    signals.publish(_TOPIC, [f"{lane} {reason}"])
