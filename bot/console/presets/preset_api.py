"""Presets over the API: what the pages do as well."""

from collections.abc import Mapping

from aiohttp import web

from bot.chat.access import Scope
from bot.console.app import protected
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.preset_models import (
    DraftFields,
    DraftRevision,
    FieldTokens,
    NewDraft,
    PresetCheck,
    PresetContent,
    PresetDetail,
    PresetList,
    PublishedPreset,
    TokensQuery,
    VersionList,
    VersionNumber,
    VersionRow,
    VersionText,
    preset_detail,
    preset_row,
    problem_row,
)
from bot.console.presets.trial.preview import DraftPreviews
from bot.console.routes import (
    ConsoleRequest,
    RouteGroup,
    route,
)
from bot.prompting.presets.preset import Preset

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
