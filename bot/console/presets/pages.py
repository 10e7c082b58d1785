"""Preset pages and their API: list, read, edit drafts, publish, test, import, delete."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal
from urllib.parse import quote

from aiohttp import web
from pydantic import AfterValidator, BaseModel, Field

from bot.chat.access import ApiScope
from bot.chat.drafts import ImportedFile, PresetDraft, Scene
from bot.chat.prompt import Prompt
from bot.chat.receipt import Receipt
from bot.chat.session import PresetVersion
from bot.console.differences import DifferingPiece, compare_lines, compare_texts
from bot.console.memory_page import MemoryPage
from bot.console.presets.editing import (
    MAX_CONTENT_CHARS,
    EditedPreset,
    ListedPreset,
    PresetEditor,
    make_conflict_error,
)
from bot.console.presets.files import ExportForm, PresetImports, send_preset
from bot.console.presets.form import (
    list_keys_without_field,
    make_form_fields,
    narrow_range,
    write_preset_json,
)
from bot.console.presets.lorebook_entries import add_entry, remove_entry
from bot.console.presets.preview import (
    SAMPLE_SCENES,
    DraftPreviews,
    make_recorded_scene_id,
    open_entry,
    view_lorebook,
)
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    Values,
    add_security_headers,
    redirect,
    route,
)
from bot.errors import BackendError, PresetError, RequestRefused, SettingsError, UserError
from bot.importers.card import card_file
from bot.importers.character_files import merge_character_file
from bot.importers.png import read_png
from bot.prompting.fit import prompt_tokens
from bot.prompting.presets.fields import MAX_NAME_CHARS
from bot.prompting.presets.files import (
    PresetProblem,
    delete_preset_file,
    export_preset,
    find_preset_file,
    load_preset_lorebook,
    to_version,
    write_file_atomically,
    write_preset,
)
from bot.prompting.presets.preset import Preset
from bot.replying.generate import GeneratedAnswer
from bot.texts.text import translatable
from bot.value_class import value_class

_API_PATH = "/api/v1/presets/{name}"
_WEB_PATH = "/presets/{name}"
_LORE_PATH = "/presets/{name}?tab=lorebook"
_MAX_VERSIONS = 200  # only the newest versions are listed
_MAX_INT = 2**31 - 1
PresetText = Annotated[str, Field(max_length=MAX_CONTENT_CHARS)]
Revision = Annotated[
    int,
    Field(ge=0, le=_MAX_INT, description="The revision of the edited draft; 0 without a draft."),
]
EntryNumber = Annotated[int, Field(ge=1, le=_MAX_INT)]
OptionalEntryNumber = Annotated[
    int, Field(ge=0, le=_MAX_INT, description="The lorebook entry that is edited; 0: none.")
]
OptionalName = Annotated[str, Field(max_length=64)]
SceneId = Annotated[
    str, Field(max_length=400, description="The name of a sample, or the key of a conversation.")
]
TrialText = Annotated[
    str, Field(max_length=4000), AfterValidator(lambda text: text.replace("\r\n", "\n"))
]
"""The text to test the lorebook with; its line breaks are LF."""


def preset_path(name: str) -> str:
    return f"/presets/{quote(name, safe='')}"


class EditorQuery(BaseModel):
    tab: Literal["form", "json", "lorebook", "changes", "versions"] = "form"
    view: Literal["edit", "preview"] = "edit"
    scene: SceneId = "tavern"
    against: int = Field(0, ge=0, le=_MAX_INT, description="The version to compare with.")
    find: str = Field("", max_length=200)
    text: TrialText = ""
    entry: OptionalEntryNumber = 0


NewPresetName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class NewName(BaseModel):
    name: NewPresetName


_NEW_PRESET_TEMPLATES: Mapping[str, Mapping[str, object]] = {
    "character": {
        "persona": "You are {{char}}. ",
        "greeting": "Hello!",
        "user_name_in_message": "default",
        "max_input_tokens": 4000,
        "max_output_tokens": 400,
    },
    "assistant": {"system": "You are a helpful assistant. ", "max_output_tokens": 1000},
}
"""The initial content of a new preset, by template name."""


@value_class
class PresetDetail:
    """A preset's published text, and the draft of its next version."""

    name: str
    version: int
    """The newest published version; 0 if it was never published."""
    published: str
    draft: str | None
    revision: int
    """The draft's revision; 0 without a draft."""
    problems: Sequence[PresetProblem]
    """Problems in the draft or, if there is none, in the published text."""


@value_class
class TrialAnswer:
    """A test answer by the draft or by a published version."""

    version: int | None
    """The published version that answered; absent if the draft answered."""
    text: str
    seconds: float = 0.0
    problem: str = ""


@value_class
class PresetPages(RouteGroup):
    navigation = (NavigationItem("/presets", translatable("Presets"), "characters"),)

    editor: PresetEditor
    previews: DraftPreviews
    imports: PresetImports
    ask_model: Callable[[Preset, Prompt, str], Awaitable[GeneratedAnswer]]
    providers: Sequence[str]
    count_preset_uses: Callable[[], Awaitable[Mapping[str, int]]]
    """Returns the number of channels, threads and servers in which each preset was chosen."""
    memories: MemoryPage

    @route("GET /api/v1/presets", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def list_presets(self) -> Mapping[str, Sequence[ListedPreset]]:
        """List presets and drafts."""
        return {"presets": await self.editor.list_presets()}

    @route("GET /presets", ApiScope.READ, template="presets/list.html")
    async def list_page(self, query: EditorQuery) -> Values:
        presets = await self.editor.list_presets()
        use_counts = await self.count_preset_uses()
        return {**_filter_presets(presets, query.find), "count": len(presets), "used": use_counts}

    @route("POST /presets/new", ApiScope.PRESETS, redirect=_WEB_PATH)
    async def create_draft(
        self, request: ConsoleRequest, name: NewPresetName, template: OptionalName = "character"
    ) -> Mapping[str, str]:
        """Create a draft from a template, or as a copy of another preset."""
        kind, _, source_name = template.partition(":")
        if kind == "copy":
            return await self.copy(request, source_name, NewName(name=name))
        default = self.editor.resolver.default_preset
        base_fields = {"name": name.strip(), "provider": default.provider, "model": default.model}
        content = {**base_fields, **_NEW_PRESET_TEMPLATES.get(kind, {})}
        return await self._begin_draft(request, content, None, "create preset")

    @route("GET /api/v1/preset-schema", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def send_schema(self) -> web.Response:
        """Get the JSON schema of presets."""
        return add_security_headers(web.json_response(Preset.model_json_schema()))

    @route("POST /api/v1/preset-check", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def check(self, content: PresetText) -> Mapping[str, Sequence[PresetProblem]]:
        """Check a preset's text without storing it; problems have line numbers."""
        return {"problems": (await self.editor.check(content)).problems}

    @route(f"GET {_API_PATH}", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def show(self, name: str) -> PresetDetail:
        """Get a preset and its draft."""
        return await self._to_detail(await self.editor.open_preset(name))

    @route(f"GET {_WEB_PATH}", ApiScope.READ, template="presets/editor.html")
    async def editor_page(self, request: ConsoleRequest, name: str, query: EditorQuery) -> Values:
        """Show a preset with its draft."""
        edited = await self.editor.open_preset(name)
        presets = await self.editor.list_presets()
        compared_version = query.against or edited.version
        old_text, new_text = edited.published_text, edited.content
        lines, change_count = await asyncio.to_thread(compare_lines, old_text, new_text)
        if compared_version != edited.version:
            compared_text = await self.editor.read_version_text(name, compared_version)
            lines, _ = await asyncio.to_thread(compare_lines, compared_text, new_text)
        result = await self.editor.check(edited.content)
        is_preview, is_lorebook = query.view == "preview", query.tab == "lorebook"
        counts_tokens = query.tab == "form" or (is_lorebook and query.entry > 0)
        tokens = await self.previews.count_tokens(edited, query.entry) if counts_tokens else {}
        may_spend = request.caller.may_spend
        conversations = await self.previews.list_answered_conversations(name)
        return {
            **query.model_dump(),
            **_filter_presets(presets, query.find),
            **self._make_form_values(result.value, result.preset),
            "edited": edited,
            "default_name": self.editor.resolver.default_preset.name,
            "base": preset_path(name),
            "problems": result.problems,
            "shown_name": result.preset.character_name if result.preset else name,
            "lines": lines,
            "changes": change_count,
            "against": compared_version,
            "versions": await self.editor.versions.history(name, _MAX_VERSIONS),
            "scenes": [*SAMPLE_SCENES, *map(make_recorded_scene_id, conversations)],
            "samples": len(SAMPLE_SCENES),
            "shown": await self.previews.show(edited, query.scene, may_spend=may_spend)
            if is_preview
            else None,
            "tried": await view_lorebook(self.editor, edited, query.text) if is_lorebook else None,
            "opened": await open_entry(self.editor, result.value, query.entry),
            "memories": (await self.memories.find(preset=name))["memories"] if is_lorebook else (),
            "tokens": tokens,
            "limit": result.preset and result.preset.max_input_tokens,
        }

    def _make_form_values(
        self, value: Mapping[str, object] | None, preset: Preset | None
    ) -> dict[str, object]:
        if value is None:
            return {"fields": None, "others": [], "providers": []}
        fields = make_form_fields(value)
        if preset is not None:
            accepts_parameter = partial(self.editor.accepts_parameter, preset)
            fields = {name: narrow_range(one, accepts_parameter) for name, one in fields.items()}
        return {
            "fields": fields,
            "others": list_keys_without_field(value),
            "providers": sorted({*self.providers, str(value.get("provider", ""))} - {""}),
        }

    @route(f"GET {_WEB_PATH}/picture", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def send_picture(self, name: str) -> web.Response:
        """Send the picture of a preset's character card, without the character's data."""
        file = self.editor.find_picture_file(name)
        try:
            card_bytes = b"" if file is None else await asyncio.to_thread(file.read_bytes)
            png_bytes, *_ = read_png(card_bytes)
        except (OSError, PresetError):
            raise RequestRefused(404, translatable("There is no such file.")) from None
        response = add_security_headers(web.Response(body=png_bytes, content_type="image/png"))
        response.headers["Cache-Control"] = "private, max-age=600"
        return response

    @route(f"GET {_API_PATH}/versions", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def list_versions(self, name: str) -> Mapping[str, Sequence[Mapping[str, float]]]:
        """List a preset's versions, newest first, with the time each was first used."""
        history = await self.editor.versions.history(name, _MAX_VERSIONS)
        return {"versions": [{"version": number, "first_seen_at": at} for number, at in history]}

    @route(f"GET {_API_PATH}/versions/{{number}}", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def show_version(self, name: str, number: int) -> Mapping[str, int | str]:
        """Get the text of a version."""
        return {"version": number, "content": await self.editor.read_version_text(name, number)}

    @route(f"GET {_API_PATH}/tokens", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def count_tokens(
        self, name: str, entry: OptionalEntryNumber = 0
    ) -> Mapping[str, Mapping[str, int] | int | None]:
        """Count the tokens of each text in the draft with its model's tokenizer.

        The result also has the limit for the whole prompt.
        """
        edited = await self.editor.open_preset(name)
        preset = (await self.editor.check(edited.content)).preset
        tokens = await self.previews.count_tokens(edited, entry)
        return {"tokens": tokens, "limit": preset.max_input_tokens if preset else None}

    @route(f"GET {_WEB_PATH}/export", ApiScope.READ, other_scope=ApiScope.PRESETS)
    async def export(self, name: str, form: ExportForm = ExportForm.JSON) -> web.Response:
        """Download a preset as a file."""
        return await send_preset(self.editor, await self.editor.open_preset(name), form)

    async def _to_detail(self, edited: EditedPreset) -> PresetDetail:
        draft = None if edited.draft is None else edited.draft.content
        errors = (await self.editor.check(edited.content)).problems
        return PresetDetail(
            edited.name, edited.version, edited.published_text, draft, edited.draft_revision, errors
        )

    @route(f"PUT {_API_PATH}/draft", ApiScope.PRESETS)
    async def save(self, name: str, content: PresetText, revision: Revision) -> PresetDetail:
        """Save a text as a preset's draft, valid or not."""
        return await self._to_detail(await self.editor.save_draft(name, content, revision))

    @route(f"PATCH {_API_PATH}/draft", ApiScope.PRESETS)
    async def save_fields(
        self, name: str, fields: dict[str, PresetText], revision: Revision
    ) -> PresetDetail:
        """Change keys in a preset's draft; empty values restore the default."""
        return await self._to_detail(await self.editor.save_fields(name, fields, revision))

    @route(f"DELETE {_API_PATH}/draft", ApiScope.PRESETS)
    async def discard_draft(self, request: ConsoleRequest, name: str) -> Mapping[str, str]:
        """Discard a preset's draft."""
        edited, draft = await self._open_draft(name)
        await self.editor.drafts.delete(name)
        await self._log_action(request, "discard draft", name, draft.content, edited.published_text)
        return {"content": ""}

    @route(f"POST {_WEB_PATH}/discard", ApiScope.PRESETS)
    async def discard_by_form(self, request: ConsoleRequest, name: str) -> web.Response:
        await self.discard_draft(request, name)
        is_published = name in self.editor.resolver.presets
        return redirect(preset_path(name) if is_published else "/presets")

    @route(f"POST {_API_PATH}/publish", ApiScope.PRESETS)
    @route(f"POST {_WEB_PATH}/publish", ApiScope.PRESETS, redirect=f"{_WEB_PATH}?tab=versions")
    async def publish(
        self, request: ConsoleRequest, name: str, revision: Revision
    ) -> Mapping[str, str | int]:
        """Publish a preset's draft as a new version."""
        editor = self.editor
        edited, draft = await self._open_draft(name)
        if draft.revision != revision:
            raise make_conflict_error()
        preset = await self._require_valid_preset(name, draft.content)
        editor.check_name_is_free(name, editor.resolver.presets.keys() - {name})
        live_preset = await asyncio.to_thread(self._write_files, preset, draft)
        number = (await editor.versions.save([to_version(live_preset)]))[name]
        editor.resolver.publish(editor.prepare_preset(live_preset), number)
        await editor.announce_presets([name])
        await editor.drafts.delete(name)
        text = export_preset(live_preset)
        await self._log_action(request, "publish", f"{name} v{number}", edited.published_text, text)
        return {"name": name, "version": number}

    async def _open_draft(self, name: str) -> tuple[EditedPreset, PresetDraft]:
        edited = await self.editor.open_preset(name)
        if edited.draft is None:
            raise RequestRefused(404, translatable("There is no draft."))
        return edited, edited.draft

    async def _require_valid_preset(self, name: str, content: str) -> Preset:
        result = await self.editor.check(content)
        if result.preset is None:
            error = result.problems[0]
            refusal = translatable("Line {line}: {problem}", line=error.line, problem=error.text)
            raise UserError(refusal)
        if result.preset.name != name:
            raise UserError.translatable(
                "Presets cannot be renamed. Change the name back to {name}, or create a new"
                " preset.",
                name=repr(name),
            )
        return result.preset

    def _write_files(self, preset: Preset, draft: PresetDraft) -> Preset:
        """Write a preset's files; return the preset with all files that it refers to loaded."""
        folder = self.editor.open_folder()
        live_preset = load_preset_lorebook(preset, find_preset_file(folder, preset))
        if draft.source is not None:
            write_file_atomically(card_file(folder, preset), draft.source.content)
        live_preset = merge_character_file(live_preset, folder)[0]
        self.editor.prepare_preset(live_preset)
        write_preset(folder, preset)
        return live_preset

    @route(f"POST {_API_PATH}/rollback", ApiScope.PRESETS)
    @route(f"POST {_WEB_PATH}/rollback", ApiScope.PRESETS, redirect=f"{_WEB_PATH}?tab=changes")
    async def go_back(
        self, request: ConsoleRequest, name: str, version: EntryNumber
    ) -> PresetDetail:
        """Make an old version's text the draft."""
        content = await self.editor.read_version_text(name, version)
        edited = await self.editor.open_preset(name)
        new_draft = await self.editor.save_draft(name, content, edited.draft_revision)
        await self._log_action(request, "go back", f"{name} v{version}", edited.content, content)
        return await self._to_detail(new_draft)

    async def _log_action(
        self, request: ConsoleRequest, action: str, subject: str, before: str, after: str
    ) -> None:
        await self.editor.log_change(request.caller.name, action, subject, before, after)

    @route(f"POST {_API_PATH}/copies", ApiScope.PRESETS)
    @route(f"POST {_WEB_PATH}/copy", ApiScope.PRESETS, redirect=_WEB_PATH)
    async def copy(self, request: ConsoleRequest, name: str, body: NewName) -> Mapping[str, str]:
        """Copy a preset to a draft with another name."""
        edited = await self.editor.open_preset(name)
        content = {**await self.editor.parse_json(edited), "name": body.name.strip()}
        source = None if edited.draft is None else edited.draft.source
        return await self._begin_draft(request, content, source, "copy preset")

    async def _begin_draft(
        self,
        request: ConsoleRequest,
        content: Mapping[str, object],
        source: ImportedFile | None,
        action: str,
    ) -> Mapping[str, str]:
        name, text = str(content["name"]), write_preset_json(content)
        await self.editor.begin_draft(name, text, source, request.caller.name, action)
        return {"name": name}

    @route(f"DELETE {_API_PATH}", ApiScope.PRESETS)
    @route(f"POST {_WEB_PATH}/delete", ApiScope.PRESETS, redirect="/presets")
    async def delete(self, request: ConsoleRequest, name: str) -> Mapping[str, str]:
        """Delete a preset with its file and draft; its versions are kept."""
        editor = self.editor
        edited = await editor.open_preset(name)
        if name == editor.resolver.default_preset.name:
            raise UserError.translatable(
                "{name} is the default preset. Before deleting it, set TROUPE_DEFAULT_PRESET to"
                " another preset.",
                name=name,
            )
        preset = editor.resolver.presets.get(name)
        if preset is not None:
            await asyncio.to_thread(delete_preset_file, editor.open_folder(), preset)
            await editor.versions.save([PresetVersion(name, "", 1)])
            editor.resolver.remove(name)
            await editor.announce_presets([name])
        await editor.drafts.delete(name)
        await self._log_action(request, "delete preset", name, edited.content, "")
        return {"name": name}

    @route("POST /api/v1/preset-imports", ApiScope.PRESETS)
    async def import_file(
        self,
        request: ConsoleRequest,
        file_name: Annotated[str, Field(min_length=1, max_length=255)],
        content: Annotated[str, Field(max_length=4 * MAX_CONTENT_CHARS, description="In base64.")],
        name: OptionalName = "",
        into: OptionalName = "",
    ) -> Mapping[str, str | Sequence[str]]:
        """Create a draft from a file, or add the file to the draft of the preset `into`."""
        try:
            file_bytes = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise RequestRefused(422, translatable("The content is not valid base64.")) from None
        file = ImportedFile(file_name, file_bytes)
        draft, notes = await self.imports.import_file(file, name.strip(), into, request.caller.name)
        return {"name": draft, "notes": notes}

    @route("POST /presets/import", ApiScope.PRESETS)
    async def import_by_form(
        self, request: ConsoleRequest, name: OptionalName = "", into: OptionalName = ""
    ) -> web.Response | Page:
        file_field = (await request.http.post()).get("file")
        if not isinstance(file_field, web.FileField):
            raise RequestRefused(422, translatable("Choose a file."))
        file = ImportedFile(file_field.filename[:255], file_field.file.read())
        draft, notes = await self.imports.import_file(file, name.strip(), into, request.caller.name)
        address = preset_path(draft)
        values = {"name": draft, "notes": notes, "address": address}
        return Page("presets/imported.html", values) if notes else redirect(address)

    @route(f"POST {_API_PATH}/lorebook/entries", ApiScope.PRESETS)
    @route(
        f"POST {_WEB_PATH}/lorebook/add", ApiScope.PRESETS, redirect=f"{_LORE_PATH}&entry={{entry}}"
    )
    async def add_entry(self, name: str, revision: Revision) -> Mapping[str, int]:
        """Add an empty entry to the draft's lorebook; entries count from 1."""
        try:
            new_value, number = add_entry(await self._read_json_with_lorebook(name))
        except ValueError:
            text = translatable("The lorebook is full, or its JSON has no list of entries.")
            raise UserError(text) from None
        edited = await self.editor.save_draft(name, write_preset_json(new_value), revision)
        return {"revision": edited.draft_revision, "entry": number}

    @route(f"DELETE {_API_PATH}/lorebook/entries/{{entry}}", ApiScope.PRESETS)
    @route(f"POST {_WEB_PATH}/lorebook/remove", ApiScope.PRESETS, redirect=_LORE_PATH)
    async def remove_entry(self, name: str, entry: EntryNumber, revision: Revision) -> PresetDetail:
        """Remove an entry from the draft's lorebook."""
        try:
            new_value = remove_entry(await self._read_json_with_lorebook(name), entry)
        except KeyError:
            raise RequestRefused(404, translatable("There is no such entry.")) from None
        return await self.save(name, write_preset_json(new_value), revision)

    async def _read_json_with_lorebook(self, name: str) -> dict[str, object]:
        value = await self.editor.parse_json(await self.editor.open_preset(name))
        return await self.editor.include_lorebook(value)

    @route(f"GET {_WEB_PATH}/test", ApiScope.READ, template="presets/test.html")
    @route(f"POST {_API_PATH}/test", ApiScope.READ)
    async def test_draft(
        self, request: ConsoleRequest, name: str
    ) -> Mapping[str, str | int | bool | Sequence[Mapping[str, str | int | None]]]:
        """Compose the draft's prompts for recorded conversations; no model is called.

        Each outcome is "same" or "differs", compared with the published version, or "over" if
        something no longer fits. Paid services are used only for callers who may spend money.
        """
        edited = await self.editor.open_preset(name)
        published_preset, draft_preset = await self._parse_both_versions(edited)
        if published_preset is None:
            raise UserError(translatable("This preset has not answered anything yet."))
        trials = []
        may_spend = request.caller.may_spend
        for conversation in await self.previews.list_answered_conversations(name):
            scene = await self.previews.composer.find_recorded_scene(conversation)
            if scene is not None:
                compose = partial(self.previews.compose_prompt, scene=scene, may_spend=may_spend)
                old_receipt, _ = await compose(published_preset, None)
                new_receipt, problem = await compose(draft_preset, None)
                trials.append(_compare_prompts(conversation, old_receipt, new_receipt, problem))
        has_draft = edited.draft is not None
        return {"name": name, "version": edited.version, "has_draft": has_draft, "trials": trials}

    @route(f"POST {_API_PATH}/ask", ApiScope.OPERATE)
    @route(f"POST {_WEB_PATH}/ask", ApiScope.OPERATE, template="presets/answers.html")
    async def ask(
        self, name: str, scene: SceneId = "tavern"
    ) -> Mapping[str, Sequence[TrialAnswer | DifferingPiece] | bool]:
        """Get and compare answers of the published version and the draft; this counts as usage."""
        edited = await self.editor.open_preset(name)
        published_preset, draft_preset = await self._parse_both_versions(edited)
        trial_scene = await self.previews.find_scene(name, scene)
        tasks = []
        async with asyncio.TaskGroup() as group:
            if published_preset is not None:
                trial = self._try_preset(published_preset, edited.version, trial_scene)
                tasks.append(group.create_task(trial))
            if edited.draft is not None or published_preset is None:
                tasks.append(group.create_task(self._try_preset(draft_preset, None, trial_scene)))
        answers = [task.result() for task in tasks]
        texts = [one.text for one in answers]
        pieces = compare_texts(*texts) if len(texts) > 1 and all(texts) else []
        answers_differ = any(one.change != "same" for one in pieces)
        return {"answers": answers, "pieces": pieces, "differ": answers_differ}

    async def _parse_both_versions(self, edited: EditedPreset) -> tuple[Preset | None, Preset]:
        draft_preset = await self.editor.parse_preset(edited)
        if not edited.published_text:
            return None, draft_preset
        return (await self.editor.check(edited.published_text)).preset, draft_preset

    async def _try_preset(self, preset: Preset, version: int | None, scene: Scene) -> TrialAnswer:
        receipt, problem = await self.previews.compose_prompt(preset, None, scene, may_spend=True)
        if receipt is None:
            return TrialAnswer(version, "", problem=problem)
        try:
            conversation = scene.message.address.conversation
            prepared_preset = await self.previews.prepare_preset(preset)
            answer = await self.ask_model(prepared_preset, receipt.prompt, conversation)
        except (UserError, BackendError, RequestRefused, SettingsError) as error:
            return TrialAnswer(version, "", problem=error.text)
        return TrialAnswer(version, answer.text, answer.seconds)


def _compare_prompts(
    conversation: str, old: Receipt | None, new: Receipt | None, problem: str
) -> Mapping[str, str | int | None]:
    if new is None or (old is not None and _count_dropped_turns(new) > _count_dropped_turns(old)):
        outcome = "over"
    elif old is not None and (old.provider, old.prompt) == (new.provider, new.prompt):
        outcome = "same"
    else:
        outcome = "differs"
    return {
        "conversation": conversation,
        "scene": make_recorded_scene_id(conversation),
        "outcome": outcome,
        "tokens_before": None if old is None else prompt_tokens(old),
        "tokens": None if new is None else prompt_tokens(new),
        "problem": problem,
    }


def _count_dropped_turns(receipt: Receipt) -> int:
    return sum(one.count for one in receipt.dropped if one.section == "history")


def _filter_presets(presets: Sequence[ListedPreset], query: str) -> dict[str, object]:
    search_text = query.strip().casefold()
    matches = [one for one in presets if search_text in one.searchable_text]
    return {
        "characters": [one for one in matches if one.is_character],
        "assistants": [one for one in matches if not one.is_character],
        "find": query,
    }
