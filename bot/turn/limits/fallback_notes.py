"""Note for the admins of a channel that another model answers, once in each outage."""

from bot.chat.incoming import Said
from bot.commands.notes.admin_notes import AdminNotes, NoteReaders
from bot.errors import BackendError
from bot.prompting.presets.preset import Preset
from bot.texts.text import Text, translatable
from bot.turn.limits.rare_notices import RareNotices

_SECONDS_BETWEEN_NOTES = 6 * 3600.0
_Model = tuple[str, str]


class FallbackNotes:
    """Remembers who was told of which failing model, until that model answers again.

    A model that fails and recovers again and again is told of once in six hours; so is a long
    outage by several processes, or after a restart.
    """

    def __init__(self, notices: RareNotices, admin_notes: AdminNotes | None) -> None:
        self._notices = notices
        self._admin_notes = admin_notes
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
            What is to stand under the answer, where no admin is told in another way.
        """
        note = translatable(
            "⚠ For the admins here: another model answers in place of {preset}'s own, which"
            " failed: “{reason}” More: /settings why",
            preset=preset.name,
            reason=failure.notice,
        )
        model, admin_notes = _model(preset), self._admin_notes
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
        return await self._notices.is_due(shared_name, _SECONDS_BETWEEN_NOTES)


def _model(preset: Preset) -> _Model:
    return preset.provider, preset.model
