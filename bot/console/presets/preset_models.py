"""Presets and their drafts as the API sends and takes them."""

from typing import Annotated

from pydantic import BaseModel, Field

from bot.console.presets.editing import MAX_CONTENT_CHARS, EditedPreset, ListedPreset
from bot.prompting.presets.problems import CheckedPreset, PresetProblem
from bot.texts.text import translate

PresetText = Annotated[str, Field(max_length=MAX_CONTENT_CHARS)]
Revision = Annotated[int, Field(ge=0, le=2**31 - 1, description="0: there was no draft.")]


class PresetRow(BaseModel):
    """A preset in the list."""

    name: str
    version: int | None = Field(description="Absent: it was never published.")
    description: str
    provider: str
    model: str
    has_draft: bool
    is_default: bool


class PresetList(BaseModel):
    presets: list[PresetRow]


class ProblemRow(BaseModel):
    """A mistake in the text of a preset."""

    line: int
    text: str


class PresetDetail(BaseModel):
    """The published text of a preset, and the draft of the next one."""

    name: str
    version: int = Field(description="0: it was never published.")
    published: str
    draft: str | None
    revision: int = Field(description="Of the draft; 0: there is none.")
    problems: list[ProblemRow] = Field(description="Of the draft, or else of the published text.")


class PresetContent(BaseModel):
    content: PresetText


class PresetCheck(BaseModel):
    problems: list[ProblemRow]


class NewDraft(BaseModel):
    content: PresetText
    revision: Revision = Field(description="Of the draft that was worked on.")


class DraftFields(BaseModel):
    """Fields of the form, by the name of the key; an empty one is left to the default."""

    fields: dict[str, Annotated[str, Field(max_length=MAX_CONTENT_CHARS)]]
    revision: Revision


class TokensQuery(BaseModel):
    entry: int = Field(
        0, ge=0, le=2**31 - 1, description="The lorebook entry that is counted as well; 0: none."
    )


class FieldTokens(BaseModel):
    """What the texts of a preset take in a prompt, as its model counts."""

    tokens: dict[str, int] = Field(description="By the name of the key.")
    limit: int | None = Field(description="The token budget of the prompt, as far as it is set.")


class DraftRevision(BaseModel):
    revision: Revision


class VersionNumber(BaseModel):
    version: int = Field(ge=1, le=2**31 - 1)


class VersionRow(BaseModel):
    version: int
    first_seen_at: float = Field(description="In Unix seconds.")


class VersionList(BaseModel):
    versions: list[VersionRow]


class VersionText(BaseModel):
    version: int
    content: str


class PublishedPreset(BaseModel):
    name: str
    version: int


def preset_row(one: ListedPreset) -> PresetRow:
    preset = one.preset
    return PresetRow(
        name=one.name,
        version=one.version,
        description=preset.description if preset else "",
        provider=preset.provider if preset else "",
        model=preset.model if preset else "",
        has_draft=one.has_draft,
        is_default=one.is_default,
    )


def preset_detail(edited: EditedPreset, checked: CheckedPreset, language: str) -> PresetDetail:
    return PresetDetail(
        name=edited.name,
        version=edited.version,
        published=edited.published,
        draft=None if edited.draft is None else edited.draft.content,
        revision=edited.revision,
        problems=[problem_row(one, language) for one in checked.problems],
    )


def problem_row(one: PresetProblem, language: str) -> ProblemRow:
    """Return a mistake in the language of its reader."""
    return ProblemRow(line=one.line, text=translate(one.text, language))
