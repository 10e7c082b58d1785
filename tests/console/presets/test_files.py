"""Files dropped on the presets page become presets; presets can be saved as files."""

import base64
import html
import io
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot.importers.card import read_card
from bot.importers.png import blank_image, encode_png
from bot.settings import Settings
from tests.checkout import CHECKOUT
from tests.support.console import Playground, call, read

CARD = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Seraphina",
        "description": "{{char}} guards the glade.",
        "first_mes": "You are awake.",
        "mes_example": "",
        "personality": "",
        "scenario": "",
        "creator_notes": "<script>alert(1)</script>",
        "tags": ["kept"],
        "extensions": {"depth_prompt": {"prompt": "kept as well"}},
    },
}
PNG = encode_png(blank_image(), v2_json=json.dumps(CARD).encode(), v3_json=None)
LOREBOOK = {"entries": {"0": {"uid": 0, "key": ["lamp"], "content": "It is lit."}}}
MODELFILE = 'FROM llama3\nSYSTEM "You mend clocks."\nPARAMETER temperature 0.7\n'
HARUHI = (CHECKOUT / "bot" / "prompting" / "roles" / "haruhi.jsonl").read_text()


async def add(
    console: Playground, name: str, content: bytes, into: str = "", new_name: str = ""
) -> tuple[int, Any]:
    given = {"file_name": name, "content": base64.b64encode(content).decode()}
    body = {**given, "into": into, "name": new_name}
    status, answer = await call(console, "POST", "/preset-imports", body)
    return status, answer


async def drop(
    console: Playground,
    name: str,
    content: bytes,
    into: str = "",
    field: str = "file",
    **headers: str,
) -> tuple[int, str]:
    """Send a file with the page's form; return the status, and the redirect or the page."""
    form = aiohttp.FormData({"csrf": console.csrf, "into": into, "name": ""})
    form.add_field(field, io.BytesIO(content), filename=name)
    async with console.client.post(
        f"{console.address}/presets/import",
        data=form,
        headers={"Origin": console.address, **headers},
        allow_redirects=False,
    ) as response:
        return response.status, response.headers.get("Location") or await response.text()


async def test_dropped_card_becomes_a_draft_and_is_stored_when_published(
    console: Playground, settings: Settings
) -> None:
    assert await drop(console, "sera.png", PNG, "nora") == (303, "/presets/Seraphina")
    page = await console.open("/presets/Seraphina")
    assert "guards the glade" in page
    status, _ = await call(console, "POST", "/presets/Seraphina/publish", {"revision": 1})
    assert status == 200
    resolver = console.service.container.resolver
    assert resolver.presets["Seraphina"].greeting == "You are awake."
    assert settings.presets_dir is not None
    kept = settings.presets_dir / "cards" / "seraphina.card"
    assert kept.read_bytes() == PNG
    assert '<img src="/presets/Seraphina/picture"' in await read(console, "/presets")
    async with console.client.get(f"{console.address}/presets/Seraphina/picture") as picture:
        assert picture.content_type == "image/png"
        assert await picture.read() == blank_image()
    async with console.client.get(f"{console.address}/presets/nora/picture") as missing:
        assert missing.status == 404
    exported = await export(console, "Seraphina", "png")
    assert read_card(exported, "x").fields.texts("tags") == ("kept",)


async def export(console: Playground, name: str, form: str) -> bytes:
    url = f"{console.address}/presets/{name}/export?form={form}"
    async with console.client.get(url) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Disposition"].startswith("attachment")
        return await response.read()


@pytest.mark.parametrize(
    ("name", "content", "made"),
    [
        ("clock.Modelfile", MODELFILE.encode(), "llama3"),
        ("card.json", json.dumps(CARD).encode(), "Seraphina"),
        ("p.json", b'{"name": "new", "provider": "echo", "model": "m"}', "new"),
        ("p.json", '{"name": "宽", "provider": "echo", "model": "m"}'.encode("utf-16"), "宽"),
    ],
)
async def test_each_kind_of_file_becomes_a_preset(
    console: Playground, name: str, content: bytes, made: str
) -> None:
    status, answer = await add(console, name, content)
    assert (status, answer.get("name")) == (200, made)
    _, found = await call(console, "GET", f"/presets/{made}")
    assert found["version"] == 0
    assert json.loads(found["draft"])["name"] == made
    status, answer = await add(console, name, content)
    assert status == 422
    assert "choose another name" in answer["error"]
    status, answer = await add(console, name, content, new_name="other")
    assert (status, answer["name"]) == (200, "other")


async def test_character_file_is_kept_with_its_stories(
    console: Playground, settings: Settings
) -> None:
    status, answer = await add(console, "../../兰.jsonl", HARUHI.encode())
    assert (status, answer.get("name")) == (200, "兰"), answer
    assert settings.presets_dir is not None
    assert (settings.presets_dir / "兰.jsonl").read_text() == HARUHI
    status, answer = await add(console, "兰.jsonl", (HARUHI + "{}\n").encode(), new_name="another")
    assert status == 422
    assert (settings.presets_dir / "兰.jsonl").read_text() == HARUHI


async def test_lorebook_is_added_to_the_open_preset_and_tried(console: Playground) -> None:
    book = json.dumps(LOREBOOK).encode()
    status, answer = await add(console, "harbour.json", book)
    assert status == 422
    assert "Open a preset" in answer["error"]
    status, answer = await add(console, "harbour.json", book, into="nora")
    assert (status, answer["name"]) == (200, "nora")
    page = await console.open("/presets/nora?tab=lorebook&text=the+lamp+is+out")
    assert "the <mark>lamp</mark> is out" in page
    assert "1 in the prompt" in page
    part = await read(console, "/presets/nora?tab=lorebook&text=nothing")
    assert "<mark>" not in part
    assert "0 in the prompt" in part
    assert "has no lorebook" in await console.open("/presets/marlowe?tab=lorebook")


LEAST = {"name": "big", "provider": "echo", "model": "m"}
HUGE = [
    {"spec": "chara_card_v2", "data": {"tags": [[]] * 900_000}},
    *(
        pytest.param({**LEAST, **fields}, marks=pytest.mark.soak)  # each takes 10 s
        for fields in (
            {"parameters": {"logit_bias": {str(token): 1 for token in range(400_000)}}},
            {"stop_sequences": ["x"] * 900_000},
            {"wake": {"words": [{"a": 1}] * 300_000}},
        )
    ),
]


@pytest.mark.parametrize("content", HUGE, ids=range(len(HUGE)))
async def test_huge_file_is_refused_without_blocking_the_event_loop(
    console: Playground, content: Any
) -> None:
    body = json.dumps(content).encode()
    before = time.thread_time()
    status, _ = await drop(console, "big.json", body)
    assert time.thread_time() - before < 1.5  # it took 6 s, in which nobody was answered
    assert status == 422


async def test_form_without_a_file_or_token_is_refused(console: Playground) -> None:
    assert (await drop(console, "x", b"x", field="other"))[0] == 422
    console.csrf = "wrong"
    assert (await drop(console, "x", b"x", field="other"))[0] == 403


async def test_preset_is_exported_in_each_format(console: Playground, tmp_path: Path) -> None:
    assert json.loads(await export(console, "nora", "json"))["system"] == "You are Nora."
    assert b"You are Nora." in await export(console, "nora", "modelfile")
    for form in ("png", "card.json", "charx"):
        assert read_card(await export(console, "nora", form), form).name == "Nora"
    await call(console, "PUT", "/presets/nora/draft", {"content": "{", "revision": 0})
    async with console.client.get(f"{console.address}/presets/nora/export") as response:
        assert response.status == 422


REFUSED = (
    ("model.gguf", b"GGUF" + bytes(64), "a model (GGUF)", "model.gguf 是模型（GGUF）；请用"),
    ("photo.png", blank_image(), "an image without a character card", "不含角色卡的图片"),
    ("cut.png", PNG[:-40], "", "PNG 不完整；请重新下载"),
    ("x.charx", b"PK\x03\x04card.json", "", "无法解压"),
    ("x.Modelfile", b"FROM a\nPARAMETER topp 1\n", "", "未知的参数 'topp'；您是否想写 'top_p'？"),
    ("x.jsonl", b'{"luotuo_openai": "a"}\n' * 2, "", "第 1 条：既没有 'text'"),
    ("p.json", b'{"name": "n", "provider": "echo", "model": 3}', "", "p.json 第 1 行：model：应"),
    ("x.txt", b"\xff\xfe\x00", "", ""),
    ("x.txt", b"hello", "neither JSON nor a Modelfile", ""),
    ("broken.json", b'{"spec": "chara_card_v2", "data": {', "", ""),
)


async def test_errors_name_the_file_in_the_readers_language(console: Playground) -> None:
    for name, content, told, told_in_chinese in REFUSED:
        status, answer = await add(console, name, content)
        assert status == 422
        assert told in answer["error"]
        status, page = await drop(console, name, content, **{"Accept-Language": "zh-CN"})
        assert status == 422
        assert told_in_chinese in html.unescape(page)
