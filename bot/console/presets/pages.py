"""The pages of presets: the list, and one preset with its draft."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from bot.chat.access import Scope
from bot.console.differences import differing_lines
from bot.console.message_view import color_of
from bot.console.presets.api import PresetText, Revision, VersionNumber, preset_name
from bot.console.presets.editing import EditedPreset, ListedPreset, PresetEditing
from bot.console.presets.files import ExportForm
from bot.console.presets.form import form_groups, keys_without_field
from bot.console.presets.lorebook_pages import LorebookView, open_entry, view_lorebook
from bot.console.presets.preview import SAMPLE_SCENES, DraftPreviews, ShownDraft
from bot.console.routes import (
    Caller,
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    redirect,
    route,
)
from bot.texts.text import translatable

_PATH = "/presets"
_ONE = "/presets/{name}"
Tab = Literal["form", "json", "lorebook", "changes", "versions"]
_EXPORTS = (
    (ExportForm.JSON, "JSON"),
    (ExportForm.MODELFILE, "Modelfile"),
    (ExportForm.CARD_PNG, translatable("Card (PNG)")),
    (ExportForm.CARD_JSON, translatable("Card (JSON)")),
    (ExportForm.CHARX, translatable("Card (CHARX)")),
)


class EditorQuery(BaseModel):
    """Which part of the editor is open."""

    tab: Tab = "form"
    view: Literal["edit", "preview"] = "edit"
    scene: str = Field("tavern", max_length=400)
    against: int = Field(0, ge=0, le=2**31 - 1, description="The version to compare with.")
    find: str = Field("", max_length=200)
    text: str = Field("", max_length=4000, description="What the lorebook is tried on.")
    entry: int = Field(0, ge=0, le=2**31 - 1, description="The lorebook entry that is edited.")


class DraftForm(BaseModel):
    content: PresetText
    revision: Revision


class RevisionForm(BaseModel):
    revision: Revision


class PresetForm(BaseModel):
    """The fields of the form, by the name of the key."""

    model_config = ConfigDict(extra="allow")
    revision: Revision


class TrialQuery(BaseModel):
    text: str = Field("", max_length=4000)
    entry: int = Field(0, ge=0, le=2**31 - 1, description="The entry that is edited beside it.")


class SceneQuery(BaseModel):
    scene: str = Field("tavern", max_length=400)


class PresetPages(RouteGroup):
    """Shows presets, and takes what their forms send."""

    navigation = (NavigationItem(_PATH, translatable("Presets"), "characters"),)

    def __init__(
        self, editing: PresetEditing, previews: DraftPreviews, providers: Sequence[str]
    ) -> None:
        """Take what the pages show.

        Args:
            editing: changes presets.
            previews: composes drafts.
            providers: those that are set up.
        """
        self._editing = editing
        self._previews = previews
        self._providers = providers

    # --- reading ------------------------------------------------------------------------------

    @route(f"GET {_PATH}", Scope.READ, "The page of presets.", query=EditorQuery)
    async def _list_page(self, request: ConsoleRequest) -> Page:
        find = request.query(EditorQuery).find
        listed = await self._editing.all()
        return Page("presets/list.html", {**_sorted_list(listed, find), "count": len(listed)})

    @route(f"GET {_ONE}", Scope.READ, "One preset with its draft.", query=EditorQuery)
    async def _editor_page(self, request: ConsoleRequest) -> Page:
        name, asked = preset_name(request), request.query(EditorQuery)
        edited = await self._editing.open(name)
        listed = await self._editing.all()
        against = asked.against or edited.version
        compared = await self._compared(edited, against)
        shown = await asyncio.to_thread(differing_lines, compared, edited.content)
        changed = shown
        if against != edited.version:
            changed = await asyncio.to_thread(differing_lines, edited.published, edited.content)
        checked = await self._editing.check(edited.content)
        return Page(
            "presets/editor.html",
            {
                **_sorted_list(listed, asked.find),
                "edited": edited,
                "default_name": self._editing.resolver.default.name,
                "tab": asked.tab,
                "base": f"{_PATH}/{quote(name, safe='')}",
                "problems": checked.problems,
                "shown_name": checked.preset.character_name if checked.preset else name,
                "lines": shown.lines,
                "changes": changed.changes,
                "against": against,
                "versions": await self._editing.history(name),
                **self._form(checked.value),
                "scenes": await self._previews.scenes(name),
                "samples": len(SAMPLE_SCENES),
                "scene": asked.scene,
                "view": asked.view,
                "shown": await self._shown(edited, asked, request.caller),
                "exports": _EXPORTS,
                "text": asked.text,
                "tried": await self._tried(edited, asked),
                "opened": await open_entry(self._editing, checked.value, asked.entry),
                "entry": asked.entry,
                "tokens": await self._tokens(edited, asked),
                "limit": checked.preset and checked.preset.max_input_tokens,
            },
        )

    def _form(self, value: Mapping[str, object] | None) -> dict[str, object]:
        """Return the fields; none for a text that is no JSON."""
        if value is None:
            return {"groups": None, "others": [], "providers": []}
        providers = sorted({*self._providers, str(value.get("provider", ""))} - {""})
        return {
            "groups": form_groups(value),
            "others": keys_without_field(value),
            "providers": providers,
        }

    async def _shown(
        self, edited: EditedPreset, asked: EditorQuery, caller: Caller
    ) -> ShownDraft | None:
        """Return the prompt for readers without a script; with one, the page asks for it."""
        if asked.view != "preview":
            return None
        return await self._previews.show(edited, asked.scene, may_spend=caller.may_spend)

    async def _tried(self, edited: EditedPreset, asked: EditorQuery) -> LorebookView | None:
        text = _plain(asked.text)
        return await view_lorebook(self._editing, edited, text) if asked.tab == "lorebook" else None

    async def _tokens(self, edited: EditedPreset, asked: EditorQuery) -> Mapping[str, int]:
        """Return what the texts of the open tab take."""
        is_counted = asked.tab == "form" or (asked.tab == "lorebook" and asked.entry > 0)
        return await self._previews.count(edited, asked.entry) if is_counted else {}

    @route(
        f"GET {_ONE}/lorebook",
        Scope.READ,
        "Which entries of the draft's lorebook a text activates.",
        query=TrialQuery,
    )
    async def _try_lorebook(self, request: ConsoleRequest) -> Page:
        edited = await self._editing.open(preset_name(request))
        asked = request.query(TrialQuery)
        text = _plain(asked.text)
        return Page(
            "presets/lorebook_trial.html",
            {
                "tried": await view_lorebook(self._editing, edited, text),
                "problems": (await self._editing.check(edited.content)).problems,
                "text": text,
                "entry": asked.entry,
                "base": f"{_PATH}/{quote(edited.name, safe='')}",
            },
        )

    @route(
        f"GET {_ONE}/preview", Scope.READ, "What a model would read of the draft.", query=SceneQuery
    )
    async def _preview(self, request: ConsoleRequest) -> Page:
        edited = await self._editing.open(preset_name(request))
        scene, may_spend = request.query(SceneQuery).scene, request.caller.may_spend
        shown = await self._previews.show(edited, scene, may_spend=may_spend)
        return Page("presets/prompt.html", {"shown": shown, "edited": edited})

    async def _compared(self, edited: EditedPreset, against: int) -> str:
        if against == edited.version:
            return edited.published
        return await self._editing.version_text(edited.name, against)

    # --- changing -----------------------------------------------------------------------------

    @route(f"POST {_ONE}/draft", Scope.PRESETS, "Keep the draft.", body=DraftForm)
    async def _save(self, request: ConsoleRequest) -> web.Response:
        form = request.body(DraftForm)
        content = _plain(form.content)
        await self._editing.save_draft(preset_name(request), content, form.revision)
        return _see(request, "json")

    @route(f"POST {_ONE}/form", Scope.PRESETS, "Keep what the form says.", body=PresetForm)
    async def _save_form(self, request: ConsoleRequest) -> web.Response:
        form = request.body(PresetForm)
        fields = {key: str(text) for key, text in (form.model_extra or {}).items()}
        await self._editing.save_fields(preset_name(request), fields, form.revision)
        return _see(request)

    @route(f"POST {_ONE}/discard", Scope.PRESETS, "Discard the draft.")
    async def _discard(self, request: ConsoleRequest) -> web.Response:
        name = preset_name(request)
        await self._editing.discard_draft(name, request.caller.name)
        listed = await self._editing.all()
        return _see(request) if any(one.name == name for one in listed) else redirect(_PATH)

    @route(f"POST {_ONE}/publish", Scope.PRESETS, "Publish the draft.", body=RevisionForm)
    async def _publish(self, request: ConsoleRequest) -> web.Response:
        revision = request.body(RevisionForm).revision
        await self._editing.publish(preset_name(request), revision, request.caller.name)
        return _see(request, "versions")

    @route(f"POST {_ONE}/rollback", Scope.PRESETS, "Go back to a version.", body=VersionNumber)
    async def _go_back(self, request: ConsoleRequest) -> web.Response:
        number = request.body(VersionNumber).version
        await self._editing.go_back(preset_name(request), number, request.caller.name)
        return _see(request, "changes")


def _sorted_list(listed: Sequence[ListedPreset], find: str) -> dict[str, object]:
    """Return the presets that a word finds, characters apart from assistants."""
    wanted = find.strip().casefold()
    found = [one for one in listed if not wanted or wanted in _searched(one)]
    return {
        "characters": [one for one in found if _is_character(one)],
        "assistants": [one for one in found if not _is_character(one)],
        "find": find,
        "color_of": color_of,
    }


def _searched(one: ListedPreset) -> str:
    preset = one.preset
    texts = [one.name, *([preset.character_name, preset.description] if preset else [])]
    return "\n".join(texts).casefold()


def _is_character(one: ListedPreset) -> bool:
    return one.preset is None or one.preset.is_character


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")  # as browsers send texts


def _see(request: ConsoleRequest, tab: Tab | Literal[""] = "") -> web.Response:
    path = f"{_PATH}/{quote(preset_name(request), safe='')}"
    return redirect(f"{path}?tab={tab}" if tab else path)
