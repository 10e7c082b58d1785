"""The presets that answer in one channel."""

from collections.abc import Collection, Mapping

from bot.chat.outgoing import Face, Limits
from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.labels import label_speakers
from bot.texts.text import translatable

MAX_CHARACTERS = 8
"""In one channel; every prompt has to name all of them."""


@frozen_dataclass
class ActivePreset:
    """A preset that answers in a channel, and where it was chosen."""

    preset: Preset
    scope: str | None
    """The scope whose setting names it; None: nobody chose, it is the default."""
    version: int | None
    """The number of the preset's current edition; None if editions are not numbered."""


@frozen_dataclass
class ActiveCharacters:
    """All presets that answer in one channel, in the order they were added; at least one."""

    members: tuple[ActivePreset, ...]

    @property
    def first(self) -> ActivePreset:
        return self.members[0]

    @property
    def presets(self) -> list[Preset]:
        return [member.preset for member in self.members]

    @property
    def names(self) -> set[str]:
        """The names of the presets."""
        return {preset.name for preset in self.presets}

    @property
    def is_group(self) -> bool:
        return len(self.members) > 1

    @property
    def reads_all(self) -> bool:
        """Whether any of them reads what people say to each other."""
        return any(preset.context == "all" for preset in self.presets)

    def pick(self, names: Collection[str]) -> tuple[ActivePreset, ...]:
        """Return the members with these preset names, in the order of the names."""
        by_name = {member.preset.name: member for member in self.members}
        return tuple(by_name[name] for name in names)

    def with_added(self, preset: Preset) -> list[Preset]:
        """Return the presets of the channel once this one has joined.

        Raises:
            UserError: it is active already, or the channel is full.
        """
        if preset.name in self.names:
            raise UserError(translatable("{name} is already active here.", name=preset.name))
        if len(self.members) >= MAX_CHARACTERS:
            raise UserError(
                translatable(
                    "{count} characters are active here, which is the maximum; remove one first"
                    " with /preset remove.",
                    count=MAX_CHARACTERS,
                )
            )
        return [*self.presets, preset]

    def with_removed(self, preset: Preset) -> list[Preset]:
        """Return the presets of the channel once this one has left.

        Raises:
            UserError: it is not active, or it is the only one.
        """
        if preset.name not in self.names:
            raise UserError(
                translatable(
                    "{name} is not active here; /preset list shows who is.", name=preset.name
                )
            )
        if not self.is_group:
            raise UserError(
                translatable(
                    "{name} is the only character here; /preset use replaces it with another.",
                    name=preset.name,
                )
            )
        return [one for one in self.presets if one.name != preset.name]

    def speaker_line(
        self, speaker: ActivePreset, character_names: Mapping[str, str], limits: Limits
    ) -> str:
        """Return the line that tells readers who speaks; empty where they know it anyway."""
        if limits.shows_faces or not (self.is_group or limits.names_only_speaker):
            return ""
        labels = label_speakers((), character_names).characters
        return limits.speaker_line.format(labels[speaker.preset.name]) + "\n"

    def face(
        self, speaker: ActivePreset, character_names: Mapping[str, str], limits: Limits
    ) -> Face | None:
        """Return whom readers see speak; None: the bot itself."""
        preset = speaker.preset
        if not limits.shows_faces or not (self.is_group or preset.is_character):
            return None
        labels = label_speakers((), character_names).characters
        return Face(labels[preset.name], preset.avatar, self.is_group)
