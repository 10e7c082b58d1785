"""The pages of presets: the list, and one preset with its draft."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from bot.chat.access import Scope
from bot.console.differences import differing_lines
from bot.console.message_view import color_of
from bot.console.presets.api import MAX_VERSIONS, preset_path
from bot.console.presets.editing import EditedPreset, ListedPreset, PresetEditing
from bot.console.presets.files import ExportForm
from bot.console.presets.form import form_groups, keys_without_field
from bot.console.presets.preview import (
    SAMPLE_SCENES,
    DraftPreviews,
    LorebookView,
    ShownDraft,
    open_entry,
    view_lorebook,
)
from bot.console.routes import Caller, ConsoleRequest, NavigationItem, Page, RouteGroup, route
from bot.texts.text import translatable
from bot.value_class import value_class

_ONE = "/presets/{name}"
TriedText = Annotated[
    str, Field(max_length=4000), AfterValidator(lambda text: text.replace("\r\n", "\n"))
]
"""The text that the lorebook is tried on, with plain line breaks."""
_EXPORTS = (
    (ExportForm.JSON, "JSON"),
    (ExportForm.MODELFILE, "Modelfile"),
    (ExportForm.CARD_PNG, translatable("Card (PNG)")),
    (ExportForm.CARD_JSON, translatable("Card (JSON)")),
    (ExportForm.CHARX, translatable("Card (CHARX)")),
)


class EditorQuery(BaseModel):
    """Which part of the editor is open."""

    tab: Literal["form", "json", "lorebook", "changes", "versions"] = "form"
    view: Literal["edit", "preview"] = "edit"
    scene: str = Field("tavern", max_length=400)
    against: int = Field(0, ge=0, le=2**31 - 1, description="The version to compare with.")
    find: str = Field("", max_length=200)
    text: TriedText = ""
    entry: int = Field(0, ge=0, le=2**31 - 1, description="The lorebook entry that is edited.")


class TrialQuery(BaseModel):
    text: TriedText = ""
    entry: int = Field(0, ge=0, le=2**31 - 1, description="The entry that is edited beside it.")


class SceneQuery(BaseModel):
    scene: str = Field("tavern", max_length=400)


@value_class
class PresetPages(RouteGroup):
    """Shows presets.

    Args:
        editing: reads presets and drafts.
        previews: composes drafts.
        providers: those that are set up.
    """

    navigation = (NavigationItem("/presets", translatable("Presets"), "characters"),)

    editing: PresetEditing
    previews: DraftPreviews
    providers: Sequence[str]

    @route("GET /presets", Scope.READ)
    async def list_page(self, query: EditorQuery) -> Page:
        listed = await self.editing.all()
        return Page("presets/list.html", {**_sorted_list(listed, query.find), "count": len(listed)})

    @route(f"GET {_ONE}", Scope.READ)
    async def editor_page(self, request: ConsoleRequest, name: str, query: EditorQuery) -> Page:
        """Show one preset with its draft."""
        edited = await self.editing.open(name)
        listed = await self.editing.all()
        against = query.against or edited.version
        compared = edited.published
        if against != edited.version:
            compared = await self.editing.version_text(name, against)
        shown = await asyncio.to_thread(differing_lines, compared, edited.content)
        changed = shown
        if against != edited.version:
            changed = await asyncio.to_thread(differing_lines, edited.published, edited.content)
        checked = await self.editing.check(edited.content)
        return Page(
            "presets/editor.html",
            {
                **_sorted_list(listed, query.find),
                "edited": edited,
                "default_name": self.editing.resolver.default.name,
                "tab": query.tab,
                "base": preset_path(name),
                "problems": checked.problems,
                "shown_name": checked.preset.character_name if checked.preset else name,
                "lines": shown.lines,
                "changes": changed.changes,
                "against": against,
                "versions": await self.editing.versions.history(name, MAX_VERSIONS),
                **self._form(checked.value),
                "scenes": await self.previews.scenes(name),
                "samples": len(SAMPLE_SCENES),
                "scene": query.scene,
                "view": query.view,
                "shown": await self._shown(edited, query, request.caller),
                "exports": _EXPORTS,
                "text": query.text,
                "tried": await self._tried(edited, query),
                "opened": await open_entry(self.editing, checked.value, query.entry),
                "entry": query.entry,
                "tokens": await self._tokens(edited, query),
                "limit": checked.preset and checked.preset.max_input_tokens,
            },
        )

    def _form(self, value: Mapping[str, object] | None) -> dict[str, object]:
        """Return the fields; none for a text that is not JSON."""
        if value is None:
            return {"groups": None, "others": [], "providers": []}
        return {
            "groups": form_groups(value),
            "others": keys_without_field(value),
            "providers": sorted({*self.providers, str(value.get("provider", ""))} - {""}),
        }

    async def _shown(
        self, edited: EditedPreset, query: EditorQuery, caller: Caller
    ) -> ShownDraft | None:
        """Return the prompt for readers without a script; with one, the page asks for it."""
        if query.view != "preview":
            return None
        return await self.previews.show(edited, query.scene, may_spend=caller.may_spend)

    async def _tried(self, edited: EditedPreset, query: EditorQuery) -> LorebookView | None:
        if query.tab != "lorebook":
            return None
        return await view_lorebook(self.editing, edited, query.text)

    async def _tokens(self, edited: EditedPreset, query: EditorQuery) -> Mapping[str, int]:
        """Return what the texts of the open tab take."""
        is_counted = query.tab == "form" or (query.tab == "lorebook" and query.entry > 0)
        return await self.previews.count(edited, query.entry) if is_counted else {}

    @route(f"GET {_ONE}/lorebook", Scope.READ)
    async def try_lorebook(self, name: str, query: TrialQuery) -> Page:
        """Show which entries of the draft's lorebook a text activates."""
        edited = await self.editing.open(name)
        return Page(
            "presets/lorebook_trial.html",
            {
                "tried": await view_lorebook(self.editing, edited, query.text),
                "problems": (await self.editing.check(edited.content)).problems,
                "text": query.text,
                "entry": query.entry,
                "base": preset_path(name),
            },
        )

    @route(f"GET {_ONE}/preview", Scope.READ)
    async def preview(self, request: ConsoleRequest, name: str, query: SceneQuery) -> Page:
        """Show what a model would read of the draft."""
        edited = await self.editing.open(name)
        may_spend = request.caller.may_spend
        shown = await self.previews.show(edited, query.scene, may_spend=may_spend)
        return Page("presets/prompt.html", {"shown": shown, "edited": edited})


def _sorted_list(listed: Sequence[ListedPreset], find: str) -> dict[str, object]:
    """Return the presets that match a word, characters and assistants apart."""
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
