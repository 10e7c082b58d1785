"""Test that a character with stories uses them in a terminal chat."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.test_terminal_beside_service import start_chat
from tests.rigs.fake_openai import FakeOpenAI
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.service
LATE = (
    "阿虚:「今天没什么活动吧？」\n春日:「没有活动就创造活动！车站前集合，迟到的人请大家喝咖啡！」"
)


async def chat(folder: Path, model: FakeOpenAI) -> asyncio.subprocess.Process:
    preset = {"name": "haruhi", "provider": "acme", "model": "m", "character": "haruhi"}
    (folder / "presets").mkdir()
    (folder / "presets" / "haruhi.json").write_text(json.dumps(preset), encoding="utf-8")
    return await start_chat(
        folder,
        TROUPE_DEFAULT_PRESET="haruhi",
        TROUPE_CONSOLE__PORT="0",
        TROUPE_PROVIDERS__ACME__BASE_URL=model.base_url,
    )


async def wait_until_indexed(folder: Path, seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while True:
            await asyncio.sleep(0.1)
            try:
                with closing(
                    sqlite3.connect(f"file:{folder}/data/troupe.db?mode=ro", uri=True)
                ) as it:
                    query = "SELECT count(*), count(vector) FROM story"
                    stories, indexed = it.execute(query).fetchone()
            except sqlite3.OperationalError:  # no database yet
                continue
            if 0 < stories == indexed:
                return


async def test_retrieved_story_is_in_the_prompt(tmp_path: Path) -> None:
    async with FakeOpenAI() as model:
        service = await chat(tmp_path, model)
        try:
            await wait_until_indexed(tmp_path)
            async with asyncio.timeout(PATIENCE_SECONDS):
                said, errors = await service.communicate("迟到了就要请客喝咖啡吗？\n".encode())
        finally:
            if service.returncode is None:
                service.kill()
                await service.wait()

    assert service.returncode == 0, (said + errors).decode()
    system, *_, newest = model.log[0]["body"]["messages"]
    assert newest["content"] == "迟到了就要请客喝咖啡吗？"
    plain = LATE.replace("「", "").replace("」", "")
    assert f"\n###\n{plain}\n###\n" in system["content"]
    assert "{{" not in system["content"]
