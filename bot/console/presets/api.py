"""Presets, drafts and versions over the API."""

from collections.abc import Mapping
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.console.app import protected
from bot.console.presets.editing import MAX_CONTENT_CHARS, EditedPreset, ListedPreset, PresetEditing
from bot.console.presets.preview import DraftPreviews
from bot.console.routes import (
    ConsoleRequest,
    RouteGroup,
    route,
)
from bot.prompting.presets.preset import Preset
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


_ONE = "/api/v1/presets/{name}"
_CONFLICT: Mapping[int, str] = {409: "Somebody has saved another draft meanwhile."}


def preset_name(request: ConsoleRequest) -> str:
    """Return the name of the preset in the path."""
    return request.http.match_info["name"].replace("\0", "")  # PostgreSQL has none


class PresetApi(RouteGroup):
    """Serves presets, their drafts and their versions as JSON."""

    def __init__(self, editing: PresetEditing, previews: DraftPreviews) -> None:
        self._editing = editing
        self._previews = previews

    @route("GET /api/v1/presets", Scope.READ, "List presets and drafts.", answer=PresetList)
    async def _list(self, _: ConsoleRequest) -> PresetList:
        return PresetList(presets=[preset_row(one) for one in await self._editing.all()])

    @route("GET /api/v1/preset-schema", Scope.READ, "The JSON schema of presets.")
    async def _schema(self, _: ConsoleRequest) -> web.StreamResponse:
        return protected(web.json_response(Preset.model_json_schema()), "")

    @route(
        "POST /api/v1/preset-check",
        Scope.READ,
        "Check the text of a preset, by line; nothing is stored.",
        body=PresetContent,
        answer=PresetCheck,
    )
    async def _check(self, request: ConsoleRequest) -> PresetCheck:
        checked = await self._editing.check(request.body(PresetContent).content)
        return PresetCheck(
            problems=[problem_row(one, request.look.language) for one in checked.problems]
        )

    @route(f"GET {_ONE}", Scope.READ, "One preset and its draft.", answer=PresetDetail)
    async def _show(self, request: ConsoleRequest) -> PresetDetail:
        return await self._detail(request, await self._editing.open(preset_name(request)))

    @route(
        f"GET {_ONE}/versions",
        Scope.READ,
        "List the versions of a preset, newest first.",
        answer=VersionList,
    )
    async def _versions(self, request: ConsoleRequest) -> VersionList:
        found = await self._editing.history(preset_name(request))
        rows = [VersionRow(version=number, first_seen_at=at) for number, at in found]
        return VersionList(versions=rows)

    @route(
        f"GET {_ONE}/versions/{{number}}",
        Scope.READ,
        "The text of one version.",
        answer=VersionText,
    )
    async def _version(self, request: ConsoleRequest) -> VersionText:
        number = request.number("number")
        content = await self._editing.version_text(preset_name(request), number)
        return VersionText(version=number, content=content)

    @route(
        f"PUT {_ONE}/draft",
        Scope.PRESETS,
        "Keep a text as the draft of a preset, valid or not.",
        body=NewDraft,
        answer=PresetDetail,
        errors=_CONFLICT,
    )
    async def _save(self, request: ConsoleRequest) -> PresetDetail:
        new = request.body(NewDraft)
        saved = await self._editing.save_draft(preset_name(request), new.content, new.revision)
        return await self._detail(request, saved)

    @route(
        f"PATCH {_ONE}/draft",
        Scope.PRESETS,
        "Change keys in the draft of a preset, as its form does.",
        body=DraftFields,
        answer=PresetDetail,
        errors=_CONFLICT,
    )
    async def _save_fields(self, request: ConsoleRequest) -> PresetDetail:
        new = request.body(DraftFields)
        saved = await self._editing.save_fields(preset_name(request), new.fields, new.revision)
        return await self._detail(request, saved)

    @route(
        f"GET {_ONE}/tokens",
        Scope.READ,
        "Count the texts of the draft, as its model does.",
        query=TokensQuery,
        answer=FieldTokens,
    )
    async def _tokens(self, request: ConsoleRequest) -> FieldTokens:
        edited = await self._editing.open(preset_name(request))
        preset = (await self._editing.check(edited.content)).preset
        tokens = await self._previews.count(edited, request.query(TokensQuery).entry)
        return FieldTokens(tokens=tokens, limit=preset and preset.max_input_tokens)

    @route(
        f"DELETE {_ONE}/draft",
        Scope.PRESETS,
        "Discard the draft of a preset.",
        answer=PresetContent,
    )
    async def _discard(self, request: ConsoleRequest) -> PresetContent:
        name = preset_name(request)
        await self._editing.discard_draft(name, request.caller.name)
        return PresetContent(content="")

    @route(
        f"POST {_ONE}/publish",
        Scope.PRESETS,
        "Let the draft of a preset answer, as a new version.",
        body=DraftRevision,
        answer=PublishedPreset,
        errors=_CONFLICT,
    )
    async def _publish(self, request: ConsoleRequest) -> PublishedPreset:
        name, revision = preset_name(request), request.body(DraftRevision).revision
        number = await self._editing.publish(name, revision, request.caller.name)
        return PublishedPreset(name=name, version=number)

    @route(
        f"POST {_ONE}/rollback",
        Scope.PRESETS,
        "Make the text of a version the draft.",
        body=VersionNumber,
        answer=PresetDetail,
        errors=_CONFLICT,
    )
    async def _go_back(self, request: ConsoleRequest) -> PresetDetail:
        number = request.body(VersionNumber).version
        name, who = preset_name(request), request.caller.name
        return await self._detail(request, await self._editing.go_back(name, number, who))

    async def _detail(self, request: ConsoleRequest, edited: EditedPreset) -> PresetDetail:
        checked = await self._editing.check(edited.content)
        return preset_detail(edited, checked, request.look.language)
