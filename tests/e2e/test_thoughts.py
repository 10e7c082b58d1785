"""What a model thinks, folded under its answer, on the wires of both platforms."""

from itertools import count
from typing import Any

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xA100))
_THOUGHTS = ("They want ", "a ||list||, ", "says @alice.")


def said(platforms: LoopbackPlatforms) -> list[str]:
    """Return the text of every request that sent or edited a message, on both platforms."""
    on_discord = [one["json"] for one in platforms.discord.log if isinstance(one["json"], dict)]
    on_telegram = [one["params"] for one in platforms.telegram.log]
    return [str(one.get("content") or one.get("text") or "") for one in on_discord + on_telegram]


async def ask(service: ServiceProcess, model: ModelServer, where: Conversation, name: str) -> None:
    if not service.is_running:
        preset = preset_json("tester", busy="queue", thoughts="folded")
        (service.presets / "tester.json").write_text(preset)
        await service.start_and_wait()
    model.thoughts = _THOUGHTS
    model.grow_slowly()
    where.ask(name)


async def test_thoughts_are_a_spoiler_on_discord(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    where, name = platforms.channel(), next(_names)
    await ask(service, model, where, name)
    answer = expected_answer(f"T{name}:12")
    folded = "They want a |\u200b|list|\u200b|, says @alice."
    shown = f"{answer}\n💭 ||{folded}||"
    await wait_until(lambda: platforms.bot_texts(where) == [shown])
    assert [one for one in said(platforms) if "They want" in one and one != shown] == []


async def test_thoughts_are_an_expandable_quote_on_telegram(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    where, name = platforms.telegram_group(), next(_names)
    await ask(service, model, where, name)
    answer = expected_answer(f"T{name}:12")

    def shown() -> list[dict[str, Any]]:
        chat = platforms.telegram.msgs[int(where.name.partition(":")[2])].values()
        return [one for one in chat if one["from"]["is_bot"] and "💭" in one.get("text", "")]

    [message] = await wait_until(shown)
    above, _, below = message["text"].partition("💭 ")
    assert above == f"{answer}\n\n"
    assert below.startswith("They want")
    assert "@" not in below
    quote = message["entities"][-1]
    assert quote["type"] == "expandable_blockquote"
    assert quote["offset"] == len(above)
    assert quote["length"] == len(below) + 3, "the sign is two units, and a space follows"
    assert platforms.bot_texts(where) == [message["text"]]
