"""Tell admins that a chat refuses messages, and that a fallback model answered."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from bot.chat.incoming import Said
from bot.commands.admin_notes import AdminNotes, NoteReaders
from bot.errors import BackendError
from bot.ports import Clock, Signals
from bot.prompting.presets.preset import Preset
from bot.texts.text import Text, translatable
from bot.turn.limits.rate_limits import RareNotices

_SECONDS_BETWEEN_NOTES = 6 * 3600.0
_Model = tuple[str, str]


@dataclass(eq=False)
class FallbackNotes:
    """Remembers who was told of which failing model, until that model answers again.

    Admins are told at most once in six hours, also if the model keeps failing and recovering, or
    several processes notice the outage.
    """

    notices: RareNotices
    admin_notes: AdminNotes | None

    def __post_init__(self) -> None:
        self._told: dict[_Model, set[str]] = {}
        """The names of the notes of each outage."""
        self._unreachable: dict[_Model, set[NoteReaders]] = {}

    def end_outage(self, preset: Preset) -> None:
        """Note that the preset's own model has answered."""
        if self._told:
            self._told.pop(_model(preset), None)
            self._unreachable.pop(_model(preset), None)

    async def tell(self, preset: Preset, failure: BackendError, said: Said) -> Text | None:
        """Tell the admins of a channel why another model answers in place of a preset's own.

        Returns:
            A note for under the answer, if no admin was told otherwise.
        """
        note = translatable(
            "⚠ For the admins here: another model answers in place of {preset}'s own, which"
            " failed: “{reason}” More: /settings why",
            preset=preset.name,
            reason=failure.notice,
        )
        model, admin_notes = _model(preset), self.admin_notes
        unreachable = self._unreachable.setdefault(model, set())
        readers = await admin_notes.readers(said) if admin_notes is not None else None
        if admin_notes is not None and readers is not None and readers not in unreachable:
            name = ",".join([readers.channel or "", *readers.people])
            if not await self._is_due(model, f"to:{name}"):
                return None
            if await admin_notes.send(readers, said, note):
                return None
            unreachable.add(readers)
        is_due = await self._is_due(model, f"under:{said.address.conversation}")
        return note if is_due else None

    async def _is_due(self, model: _Model, name: str) -> bool:
        told = self._told.setdefault(model, set())
        if name in told:
            return False
        told.add(name)
        shared_name = f"fallback:{'/'.join(model)}:{name}"
        return await self.notices.is_due(shared_name, _SECONDS_BETWEEN_NOTES)


def _model(preset: Preset) -> _Model:
    return preset.provider, preset.model


REFUSED_SECONDS = 5.0
_MAX_CHATS = 1000
_TOPIC = "refused_chats"
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class RefusedChats:
    """The lanes in which the platform has just refused a message of the bot, and why."""

    clock: Clock
    signals: Signals
    notices: RareNotices
    admin_notes: AdminNotes | None = None

    def __post_init__(self) -> None:
        self._refused: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self.signals.subscribe(_TOPIC, self._note)

    async def covers(self, said: Said) -> bool:
        """Return whether an answer would be refused; then it is logged, and the admins know.

        Who writes in private has let the bot write again, if they had blocked it.
        """
        refused_at, reason = self._refused.get(said.address.lane, (None, ""))
        if (
            said.is_private
            or refused_at is None
            or self.clock.monotonic() - refused_at >= REFUSED_SECONDS
        ):
            return False
        _log.warning("not_answered_in_refused_chat", lane=said.address.lane, reason=reason)
        await self.tell(said)
        return True

    async def tell(self, said: Said) -> None:
        """Tell who reads notes about a chat that it refuses answers, once in six hours."""
        _, reason = self._refused.get(said.address.lane, (0.0, ""))
        readers = await self.admin_notes.readers(said) if self.admin_notes is not None else None
        if self.admin_notes is None or readers is None or not reason:
            return
        if await self.notices.is_due(f"refused:{said.address.lane}", _SECONDS_BETWEEN_NOTES):
            await self.admin_notes.send(readers, said, self.explain(said))

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
            self._refused[lane] = self.clock.monotonic(), reason
            self._refused.move_to_end(lane)
            if len(self._refused) > _MAX_CHATS:
                self._refused.popitem(last=False)


def publish_refusal(signals: Signals, lane: str, reason: str) -> None:
    """Tell all workers that the platform has refused a message in a lane."""
    signals.publish(_TOPIC, [f"{lane} {reason}"])
