"""The pages of presets over HTTP, with the whole service behind them."""

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import pytest
from markupsafe import escape

from bot.chat.session import PresetVersion
from bot.console.presets.editing import MAX_CONTENT_CHARS
from bot.errors import UserError
from bot.prompting.presets.files import MAX_PROBLEMS, check_preset
from bot.prompting.presets.preset import Preset
from bot.service.backends import find_preset_problems
from bot.settings import Settings, read_settings
from bot.texts.text import translate
from tests.support.console import Playground, call, edit, read

_CHINESE = re.compile("[\u4e00-\u9fff]")
_ENGLISH = re.compile(r"\b(the|must|should|cannot|is|are|in|use|write|choose)\b")


async def test_preset_list_can_be_searched(console: Playground) -> None:
    for query, found in (("", ["Marlowe", "Nora"]), ("?find=marl", ["Marlowe"])):
        page = await console.open(f"/presets{query}")
        assert [name for name in ("Marlowe", "Nora") if f">{name}</b>" in page] == found


async def test_errors_have_line_numbers_and_are_in_the_readers_language(
    console: Playground,
) -> None:
    text = '{"name": "nora",\n"temprature": 1,\n"scope": 7}'
    _, answer = await call(console, "POST", "/preset-check", {"content": text})
    nearest = "unknown key 'temprature'; did you mean 'parameters': {\"temperature\": ...}?"
    assert {(2, nearest)} < {(one["line"], one["text"]) for one in answer["problems"]}
    assert 3 in [one["line"] for one in answer["problems"]]
    _, broken = await call(console, "POST", "/preset-check", {"content": '{\n"name": \n}'})
    assert broken["problems"][0]["line"] == 3
    await call(console, "PUT", "/presets/nora/draft", {"content": text, "revision": 0})
    page = await console.open("/presets/nora?tab=json", **{"Accept-Language": "zh"})
    assert "未知的键 &#39;temprature&#39;；您是否想写" in page
    assert "scope：应该是" in page
    assert "缺少键 &#39;provider&#39;" in page
    assert "应该是" not in await console.open("/presets/nora?tab=json")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a/b"},
        {"persona": "{{RAG-dialogues|token<=x}}"},
        {"persona": "{{RAG-dialoge}}"},
        {"story_string": "x" * 50_001},
        {"template": "internlmm"},
        {"template": {"user": 1}},
        {"token_counter": "nope"},
        {"messages": [{"role": "user", "content": [{"type": "image", "text": "?"}]}]},
        {"wake": {"words": ["/(/"]}},
        {"aliases": [""]},
        {"aliases": ["x"] * 300},
        {"parameters": {"temperature": "warm", "top_p": 9, "n": 2}},
        {"tools": ["dice"]},
        {"mcp_servers": ["files"]},
        {"lorebook": {"entries": 3}},
        {"lorebook": {"entries": [{"keys": ["lamp"], "content": 5}]}},
    ],
    ids=str,
)
def test_errors_of_each_kind_are_translated(changes: dict[str, object]) -> None:
    text = json.dumps({"name": "n", "provider": "echo", "model": "m", **changes})
    settings = read_settings(providers={"echo": {"kind": "echo"}})
    checked = check_preset(text)
    problems = [one.text for one in checked.problems]
    if checked.preset is not None:
        problems = list(find_preset_problems(checked.preset, settings))
    assert problems
    for told in problems:
        assert _CHINESE.search(translate(told, "zh")), told
        assert not _ENGLISH.search(translate(told, "zh")), translate(told, "zh")


@pytest.mark.parametrize("is_card", [True, False])
def test_error_in_a_lorebook_is_shown_at_its_entry(is_card: bool) -> None:
    good, bad = '{"keys": ["a"], "key": ["a"], "content": ""}', '{"content": 7}'
    rows = f"[{good},\n{bad}]" if is_card else f'{{"0": {good},\n"1": {bad}}}'
    text = f'{{"name": "n", "provider": "p", "model": "m",\n"lorebook": {{"entries":\n{rows}}}}}'
    [problem] = check_preset(text).problems
    assert (problem.line, "lorebook entry 2: `content` must be text" in problem.text) == (4, True)


@pytest.mark.parametrize(
    "text", ["{", '{"a" 1}', '{"a": 1 "b"}', '{"a": 1, "a": 2}', '{"a": }', '{"a": "\\q"}', "{} {}",
             '{"a": 1e999}', '{"a": NaN}', "/* {}", '{"a": [[}'],
)  # fmt: skip
def test_syntax_errors_are_translated(text: str) -> None:
    for one in check_preset(text).problems:
        assert _CHINESE.search(translate(one.text, "zh")), one.text


async def test_invalid_draft_is_saved_and_shown_verbatim(
    console: Playground,
) -> None:
    """A textarea drops a line break directly after its tag."""
    await console.open("/presets/nora?tab=json")
    text = '\n\n{"nam'
    draft = {"content": text, "revision": 0}
    assert (await call(console, "PUT", "/presets/nora/draft", draft))[0] == 200
    page = await console.open("/presets/nora?tab=json")
    assert f">\n\n\n{escape(text.strip())}</textarea>" in page
    assert "Line 3:" in page
    status, told = await console.send("/presets/nora/publish", revision="1")
    assert (status, "Line 3:" in told) == (422, True)
    assert "The draft is not valid JSON" in await console.open("/presets/nora")
    changes = {"fields": {"system": "x"}, "revision": 1}
    assert (await call(console, "PATCH", "/presets/nora/draft", changes))[0] == 422


async def test_published_preset_answers_next_and_is_written_and_audited(
    console: Playground, settings: Settings
) -> None:
    await edit(console, "nora", system="You mend clocks.")
    status, published = await call(console, "POST", "/presets/nora/publish", {"revision": 1})
    assert (status, published) == (200, {"name": "nora", "version": 2})

    resolver = console.service.container.resolver
    assert resolver.presets["nora"].system == resolver.default_preset.system == "You mend clocks."
    assert resolver.versions["nora"] == 2
    assert settings.presets_dir is not None
    written = json.loads((settings.presets_dir / "nora.json").read_text())
    assert written["system"] == "You mend clocks."
    _, audit = await call(console, "GET", "/audit")
    [entry] = [one for one in audit["entries"] if one["action"] == "publish"]
    assert entry["subject"] == "nora v2"
    assert entry["who"] == "session"
    assert "You are Nora." in entry["before"]
    assert "You mend clocks." in entry["after"]
    _, found = await call(console, "GET", "/presets/nora")
    assert (found["draft"], found["version"]) == (None, 2)


async def test_rolling_back_makes_the_old_text_a_draft(console: Playground) -> None:
    await edit(console, "nora", system="You mend clocks.")
    await call(console, "POST", "/presets/nora/publish", {"revision": 1})
    _, found = await call(console, "POST", "/presets/nora/rollback", {"version": 1})
    assert json.loads(found["draft"])["system"] == "You are Nora."
    page = await console.open("/presets/nora?tab=changes")
    assert '<li class="removed">' in page
    assert '<li class="added">' in page
    await call(console, "POST", "/presets/nora/publish", {"revision": 1})
    _, versions = await call(console, "GET", "/presets/nora/versions")
    assert [one["version"] for one in versions["versions"]] == [3, 2, 1]
    resolver = console.service.container.resolver
    assert resolver.presets["nora"].system == "You are Nora."


async def test_draft_of_somebody_else_is_not_overwritten(console: Playground) -> None:
    await edit(console, "nora", system="Mine.")
    draft = {"content": "{}", "revision": 0}
    assert (await call(console, "PUT", "/presets/nora/draft", draft))[0] == 409
    assert (await call(console, "POST", "/presets/nora/publish", {"revision": 7}))[0] == 409
    _, found = await call(console, "GET", "/presets/nora")
    assert json.loads(found["draft"])["system"] == "Mine."


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "nils"}, "Presets cannot be renamed"),
        ({"provider": "nowhere"}, "is not set up"),
        ({"lorebook": "../outside.json"}, "outside"),
        ({"lorebook": "missing.json"}, "cannot be read"),
    ],
)
async def test_preset_that_cannot_answer_is_not_published(
    console: Playground, settings: Settings, changes: dict[str, object], problem: str
) -> None:
    assert settings.presets_dir is not None
    before = (settings.presets_dir / "nora.json").read_text()
    await edit(console, "nora", **changes)
    status, answer = await call(console, "POST", "/presets/nora/publish", {"revision": 1})
    assert status == 422
    assert problem in answer["error"]
    assert (settings.presets_dir / "nora.json").read_text() == before
    resolver = console.service.container.resolver
    assert resolver.presets["nora"].system == "You are Nora."


async def test_form_saves_a_draft_and_keeps_other_keys(console: Playground) -> None:
    page = await console.open("/presets/nora")
    assert 'name="parameters.temperature"' in page
    assert ">\nYou are Nora.</textarea>" in page
    fields = {"system": "You\r\nmend.", "wake.chance": "0.5"}
    body = {"fields": fields, "revision": 0}
    assert (await call(console, "PATCH", "/presets/nora/draft", body))[0] == 200
    _, found = await call(console, "GET", "/presets/nora")
    draft = json.loads(found["draft"])
    assert (draft["system"], draft["wake"]) == ("You\nmend.", {"chance": 0.5})
    assert draft["role_name"] == "Nora"
    assert (await call(console, "PATCH", "/presets/nora/draft", body))[0] == 409


async def test_preview_composes_the_draft_like_a_real_prompt(console: Playground) -> None:
    await edit(console, "nora", system="You mend clocks for {{user}} of the harbour inn.")
    page = await read(console, "/presets/nora?view=preview&scene=tavern")
    assert "You mend clocks for {{user}} of the harbour inn." in page
    assert "Nora:" in page
    assert 'class="total"' in page
    assert 'href="/presets/nora?tab=changes"' in page
    page = await read(console, "/presets/nora?view=preview&scene=first")
    assert "Hello! Who are you" in page
    assert 'href="/presets/nora?tab=changes&amp;scene=first"' in page, "tabs keep the scene"
    status, _ = await console.send("/presets/nora/discard")
    assert status == 303
    assert "You are Nora." in await read(console, "/presets/nora?view=preview")


async def test_preview_of_a_recorded_conversation_is_its_next_prompt(console: Playground) -> None:
    await console.open("/playground")
    await console.send(f"{console.path}/people", name="alice")
    await console.open(console.path)
    await console.say("nora, the lamp is out", "00000000")
    channel = await console.answered(2)
    page = await console.open("/presets/nora")
    scene = f"recorded {channel.channel.address.conversation}"
    assert f'value="{scene}"' in page
    shown = await read(console, f"/presets/nora?view=preview&scene={quote(scene)}")
    assert "the lamp is out" in shown
    async with console.client.get(
        f"{console.address}/presets/nora?view=preview&scene=recorded%20web:other"
    ) as response:
        assert response.status == 404


async def test_preview_explains_why_no_prompt_can_be_composed(console: Playground) -> None:
    await edit(console, "nora", max_input_tokens=3)
    assert 'class="total"' not in await read(console, "/presets/nora?view=preview")
    await edit(console, "nora", max_input_tokens=300, provider="nowhere")
    assert "is not set up" in await read(console, "/presets/nora?view=preview")
    await edit(console, "nora", max_input_tokens="many")
    assert "The draft has errors" in await read(console, "/presets/nora?view=preview")


async def test_field_tokens_are_counted_with_the_models_tokenizer(console: Playground) -> None:
    await edit(console, "nora", system="one two three four", token_counter="o200k")
    _, found = await call(console, "GET", "/presets/nora/tokens")
    assert found == {"tokens": {"system": 4}, "limit": 16_000}


async def test_preset_published_by_another_process_is_reloaded(console: Playground) -> None:
    container = console.service.container
    _, found = await call(console, "GET", "/presets/nora")
    content = found["published"].replace("You are Nora.", "You mend clocks.")
    await container.preset_versions.save([PresetVersion("nora", content, 1)])
    await container.published_presets.reload_presets(["nora"])
    active = await container.resolver.resolve(("web:c",))
    assert (active.first.preset.system, active.first.version) == ("You mend clocks.", 2)


async def test_schema_endpoint_returns_the_schema_of_presets(console: Playground) -> None:
    _, schema = await call(console, "GET", "/preset-schema")
    assert schema["properties"].keys() == Preset.model_fields.keys()


async def test_copy_is_a_draft_that_can_be_published(
    console: Playground, settings: Settings
) -> None:
    status, where = await console.send("/presets/nora/copy", name="mira")
    assert (status, where) == (303, "/presets/mira")
    assert "Draft of a new preset" in await console.open("/presets/mira")

    _, found = await call(console, "GET", "/presets/mira")
    assert json.loads(found["draft"])["name"] == "mira"
    assert json.loads(found["draft"])["system"] == "You are Nora."
    status, _ = await call(console, "POST", "/presets/mira/publish", {"revision": 1})
    assert status == 200
    assert settings.presets_dir is not None
    assert (settings.presets_dir / "mira.json").exists()

    for taken in ("mira", "../x", "MIRA", "ｍｉｒａ", "Nora"):  # the file would be that of mira
        assert (await call(console, "POST", "/presets/nora/copies", {"name": taken}))[0] == 422
    for name in ("n\u043era", "N\u041eRA", "nor\u0430"):  # with Cyrillic letters
        status, answer = await call(console, "POST", "/presets/marlowe/copies", {"name": name})
        assert (status, "too similar to the preset 'nora'" in answer["error"]) == (422, True)
    assert (await call(console, "POST", "/presets/none/copies", {"name": "x"}))[0] == 404


async def test_deleted_preset_answers_nowhere_and_keeps_its_versions(
    console: Playground, settings: Settings
) -> None:
    resolver = console.service.container.resolver
    await resolver.set_active_presets("web:there", [resolver.presets["marlowe"]], "web:alice")
    _, before = await call(console, "GET", "/presets/marlowe")
    content = before["published"]

    assert (await console.send("/presets/marlowe/delete"))[0] == 303
    assert "marlowe" not in resolver.presets
    assert (await resolver.resolve(["web:there"])).first.preset.name == "nora"
    assert settings.presets_dir is not None
    assert not (settings.presets_dir / "marlowe.json").exists()
    assert (await call(console, "GET", "/presets/marlowe"))[0] == 404
    assert (await call(console, "DELETE", "/presets/marlowe"))[0] == 404
    status, told = await call(console, "DELETE", "/presets/nora")  # the default one
    assert (status, "TROUPE_DEFAULT_PRESET" in told["error"]) == (422, True)
    assert (settings.presets_dir / "nora.json").exists()
    reload = console.service.container.published_presets.reload_presets
    await reload(["marlowe"])  # as another process does
    assert "marlowe" not in resolver.presets

    # One that is published later under this name goes on from its versions.
    await call(console, "POST", "/presets/nora/copies", {"name": "marlowe"})
    draft = {"content": content, "revision": 1}
    assert (await call(console, "PUT", "/presets/marlowe/draft", draft))[0] == 200
    _, published = await call(console, "POST", "/presets/marlowe/publish", {"revision": 2})
    assert published["version"] == 3
    _, versions = await call(console, "GET", "/presets/marlowe/versions")
    assert [one["version"] for one in versions["versions"]] == [3, 1]
    await reload(["marlowe"])
    assert (await resolver.resolve(["web:there"])).first.preset.name == "marlowe"


_LEAST = {"name": "nora", "provider": "echo", "model": "m"}


async def test_only_the_first_errors_are_described(console: Playground) -> None:
    """Describing an error takes 0.25 ms, and a text can contain 300,000 errors."""
    unknown = {f"key{number}": 1 for number in range(1000)}
    text = json.dumps({**_LEAST, **unknown}, indent=0)

    _, answer = await call(console, "POST", "/preset-check", {"content": text})

    problems = answer["problems"]
    assert [one["line"] for one in problems] == list(range(5, 5 + MAX_PROBLEMS + 1))
    assert problems[-1]["text"] == "900 more problems"


async def test_long_text_is_checked_in_a_thread(console: Playground) -> None:
    checked_in: list[int] = []

    def note_thread(_: Preset) -> Sequence[str]:
        checked_in.append(threading.get_ident())
        return []

    editor = replace(console.service.console.preset_editor, find_unsupported_parameters=note_thread)
    for system in ("", "x" * 100_000):
        assert (await editor.check(json.dumps({**_LEAST, "system": system}))).preset is not None

    assert checked_in[0] == threading.get_ident()
    assert checked_in[1] != threading.get_ident()


async def test_overlong_draft_is_refused_from_any_source(
    console: Playground,
) -> None:
    """A ten-megabyte card would become a forty-megabyte draft."""
    editor, text = console.service.console.preset_editor, "x" * (MAX_CONTENT_CHARS + 1)
    with pytest.raises(UserError, match="may be up to 4,000,000 characters"):
        await editor.begin_draft("long", text, None, "session", "import")
    with pytest.raises(UserError, match="may be up to 4,000,000 characters"):
        await editor.save_draft("nora", text, 0)
