"""Copy, rename and delete presets."""

import asyncio
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.drafts import PresetDraft
from bot.chat.session import PresetVersion
from bot.console.presets.api import preset_name
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.form import write_preset_json
from bot.console.routes import (
    ConsoleRequest,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import PresetError, UserError
from bot.prompting.presets.fields import MAX_NAME_CHARS, name_problem
from bot.prompting.presets.files import delete_preset_file
from bot.prompting.presets.preset import Preset
from bot.texts.text import text_of, translatable
from bot.value_class import value_class

_ONE = "/presets/{name}"


class NewName(BaseModel):
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)


class PresetName(BaseModel):
    """The preset that was made or deleted."""

    name: str


@value_class
class PresetCopies:
    """Makes and removes presets beside those that are edited."""

    editing: PresetEditing

    async def copy(self, name: str, new_name: str, who: str) -> str:
        """Make a draft of another name from what is worked on; return that name.

        Raises:
            RequestRefused: 404: there is no such preset.
            UserError: the name cannot be used or is taken, or the text is no JSON.
        """
        edited = await self.editing.open(name)
        await self._begin(edited, new_name, who, "copy preset")
        return new_name

    async def rename(self, name: str, new_name: str, who: str) -> str:
        """Give a preset that was never published another name; return that name.

        Raises:
            RequestRefused: 404: there is no such preset.
            UserError: it was published, or as for `copy`.
        """
        edited = await self.editing.open(name)
        if edited.draft is None or name in self.editing.resolver.presets:
            raise UserError(
                translatable(
                    "Histories and settings know a published preset by its name. Copy it, choose"
                    " the copy where it answers, and delete this one."
                )
            )
        await self._begin(edited, new_name, who, "rename preset")
        await self.editing.drafts.delete(name)
        return new_name

    async def delete(self, name: str, who: str) -> None:
        """Let a preset answer nowhere any more, and delete its file and its draft.

        Its versions are kept: a preset of this name that is published later goes on from them.

        Raises:
            RequestRefused: 404: there is no such preset.
            UserError: it is the default one, or its file cannot be deleted; nothing was changed.
        """
        editing = self.editing
        edited = await editing.open(name)
        if name == editing.resolver.default.name:
            raise UserError(
                translatable(
                    "{name} is the default preset, which answers where none is chosen; set another"
                    " TROUPE_DEFAULT_PRESET first.",
                    name=name,
                )
            )
        preset = editing.resolver.presets.get(name)
        if preset is not None:
            await asyncio.to_thread(self._delete_file, preset)
            await editing.versions.save([PresetVersion(name, "", 1)])
            editing.resolver.remove(name)
            await editing.announce([name])
        await editing.drafts.delete(name)
        await editing.record(who, "delete preset", name, edited.content, "")

    async def _begin(self, edited: EditedPreset, new_name: str, who: str, action: str) -> None:
        if problem := name_problem(new_name):
            raise UserError(problem)
        value = (await self.editing.check(edited.content)).value
        if value is None:
            raise UserError(translatable("The draft is no JSON; mend that first."))
        content = write_preset_json({**value, "name": new_name})
        source = None if edited.draft is None else edited.draft.source
        draft = PresetDraft(new_name, 0, 1, content, self.editing.clock.now(), source)
        await self.editing.begin_draft(draft, who, action)

    def _delete_file(self, preset: Preset) -> None:
        try:
            delete_preset_file(self.editing.open_folder(), preset)
        except PresetError as error:
            raise UserError(text_of(error)) from None


class PresetCopyPages(RouteGroup):
    """Serves the forms and the API for them."""

    def __init__(self, copies: PresetCopies) -> None:
        self._copies = copies

    @route(
        f"POST /api/v1{_ONE}/copies",
        Scope.PRESETS,
        "Make a draft of another name from a preset.",
        body=NewName,
        answer=PresetName,
    )
    async def _copy(self, request: ConsoleRequest) -> PresetName:
        new_name, who = request.body(NewName).name.strip(), request.caller.name
        return PresetName(name=await self._copies.copy(preset_name(request), new_name, who))

    @route(
        f"DELETE /api/v1{_ONE}",
        Scope.PRESETS,
        "Delete a preset, its file and its draft; its versions are kept.",
        answer=PresetName,
        errors={422: "It is the default preset, or its file cannot be deleted."},
    )
    async def _delete(self, request: ConsoleRequest) -> PresetName:
        name = preset_name(request)
        await self._copies.delete(name, request.caller.name)
        return PresetName(name=name)

    @route(f"POST {_ONE}/copy", Scope.PRESETS, "Copy a preset.", body=NewName)
    async def _copy_by_form(self, request: ConsoleRequest) -> web.Response:
        return _see((await self._copy(request)).name)

    @route(f"POST {_ONE}/rename", Scope.PRESETS, "Rename a draft.", body=NewName)
    async def _rename_by_form(self, request: ConsoleRequest) -> web.Response:
        new_name, who = request.body(NewName).name.strip(), request.caller.name
        return _see(await self._copies.rename(preset_name(request), new_name, who))

    @route(f"POST {_ONE}/delete", Scope.PRESETS, "Delete a preset.")
    async def _delete_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._delete(request)
        return redirect("/presets")


def _see(name: str) -> web.Response:
    return redirect(f"/presets/{quote(name, safe='')}")
