"""Copies, renamed drafts and deleted presets, with the whole service behind them."""

import json

from bot.settings import Settings
from tests.support.console import Playground, call


async def test_copy_is_a_draft_that_is_renamed_and_published(
    console: Playground, settings: Settings
) -> None:
    status, where = await console.send("/presets/nora/copy", name="nora the second")
    assert (status, where) == (303, "/presets/nora%20the%20second")
    page = await console.open("/presets/nora the second")
    assert "Draft of a new preset" in page
    assert 'action="/presets/nora%20the%20second/rename"' in page
    status, where = await console.send("/presets/nora the second/rename", name="mira")
    assert (status, where) == (303, "/presets/mira")
    assert (await call(console, "GET", "/presets/nora%20the%20second"))[0] == 404

    _, found = await call(console, "GET", "/presets/mira")
    assert json.loads(found["draft"])["name"] == "mira"
    assert json.loads(found["draft"])["system"] == "You are Nora."
    status, _ = await call(console, "POST", "/presets/mira/publish", {"revision": 1})
    assert status == 200
    assert settings.presets_dir is not None
    assert (settings.presets_dir / "mira.json").exists()

    assert (await console.send("/presets/mira/rename", name="other"))[0] == 422
    assert (await call(console, "POST", "/presets/nora/copies", {"name": "mira"}))[0] == 422
    assert (await call(console, "POST", "/presets/nora/copies", {"name": "../x"}))[0] == 422
    assert (await call(console, "POST", "/presets/none/copies", {"name": "x"}))[0] == 404
    for taken in ("MIRA", "ｍｉｒａ", "Nora"):  # the file would be that of mira
        assert (await call(console, "POST", "/presets/nora/copies", {"name": taken}))[0] == 422


async def test_name_that_looks_like_another_one_is_refused(console: Playground) -> None:
    for name in ("n\u043era", "N\u041eRA", "nor\u0430"):  # with Cyrillic letters
        status, answer = await call(console, "POST", "/presets/marlowe/copies", {"name": name})
        assert (status, answer["error"][-40:]) == (
            422,
            "ks like the preset 'nora'; choose another name."[-40:],
        )


async def test_deleted_preset_answers_nowhere_and_keeps_its_versions(
    console: Playground, settings: Settings
) -> None:
    resolver = console.service.container.resolver
    await resolver.set_active("web:there", [resolver.presets["marlowe"]], "web:alice")
    _, before = await call(console, "GET", "/presets/marlowe")
    content = before["published"]

    assert (await console.send("/presets/marlowe/delete"))[0] == 303
    assert "marlowe" not in resolver.presets
    assert (await resolver.resolve(["web:there"])).first.preset.name == "nora"
    assert settings.presets_dir is not None
    assert not (settings.presets_dir / "marlowe.json").exists()
    assert (await call(console, "GET", "/presets/marlowe"))[0] == 404
    resolver.mark_stale(["marlowe"])  # as another process is told
    await resolver.resolve(["web:there"])
    assert "marlowe" not in resolver.presets

    # One that is published later under this name goes on from its versions.
    await call(console, "POST", "/presets/nora/copies", {"name": "marlowe"})
    draft = {"content": content, "revision": 1}
    assert (await call(console, "PUT", "/presets/marlowe/draft", draft))[0] == 200
    _, published = await call(console, "POST", "/presets/marlowe/publish", {"revision": 2})
    assert published["version"] == 3
    _, versions = await call(console, "GET", "/presets/marlowe/versions")
    assert [one["version"] for one in versions["versions"]] == [3, 1]
    resolver.mark_stale(["marlowe"])
    assert (await resolver.resolve(["web:there"])).first.preset.name == "marlowe"


async def test_default_preset_is_not_deleted(console: Playground, settings: Settings) -> None:
    status, told = await call(console, "DELETE", "/presets/nora")
    assert status == 422
    assert "TROUPE_DEFAULT_PRESET" in told["error"]
    assert settings.presets_dir is not None
    assert (settings.presets_dir / "nora.json").exists()
    assert (await call(console, "DELETE", "/presets/nobody"))[0] == 404
