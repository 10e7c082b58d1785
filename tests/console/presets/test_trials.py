"""Drafts are tried before publication: on recorded conversations, and with a model."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, func, select

from bot.chat.web_channel import WebMessage
from bot.storage.tables import inbox, outbox, turn
from tests.support.console import Playground, call, edit


def _scalar(statement: Select[int], connection: Connection) -> int:
    return int(connection.execute(statement).scalar_one())


def _is_answered(count: int, shown: Sequence[WebMessage]) -> bool:
    return len(shown) == count and bool(shown[-1].buttons)


async def record(console: Playground, *texts: str) -> str:
    """Let nora answer texts in a new channel; return the conversation's key."""
    await console.open("/playground")
    await console.send("/playground", name="test", look="")
    status, where = await console.send("/playground", name="harbour", look="")
    assert status == 303
    page = await console.open(where)
    author = page.partition('name="author" value="')[2].partition('"')[0]
    channel = await console.read_channel()
    for number, text in enumerate(texts):
        await console.say(text, f"{number:08}", author)
        await channel.wait_for(partial(_is_answered, 2 * (number + 1)))
    return channel.channel.address.conversation


async def test_trial_reports_whether_prompts_are_the_same_different_or_over_budget(
    console: Playground,
) -> None:
    conversation = await record(console, "one " * 30, "two " * 30)

    async def trial(**changes: object) -> Any:
        await edit(console, "nora", **changes)
        _, answer = await call(console, "POST", "/presets/nora/test")
        [one] = answer["trials"]
        return one

    same = await trial(description="no part of any prompt")
    assert (same["conversation"], same["outcome"]) == (conversation, "same")
    assert same["tokens_before"] == same["tokens"] > 0
    assert (await trial(system="You mend clocks."))["outcome"] == "differs"
    assert (await trial(max_input_tokens=60))["outcome"] == "over"
    over = await trial(max_input_tokens=2)
    assert (over["outcome"], over["tokens"]) == ("over", None)
    assert "over the limit" in await console.open("/presets/nora/test")


async def test_trial_neither_calls_a_model_nor_stores_anything(console: Playground) -> None:
    await record(console, "one")
    database = console.service.container.database

    async def rows() -> list[int]:
        counts = (select(func.count()).select_from(table) for table in (inbox, turn, outbox))
        return [await database.read(partial(_scalar, count)) for count in counts]

    before = await rows()
    await edit(console, "nora", system="You mend clocks.")
    await console.open("/presets/nora/test")
    await console.open("/presets/nora?view=preview")
    assert await rows() == before


async def test_published_preset_and_draft_answer_the_same_question(console: Playground) -> None:
    conversation = await record(console, "one")
    await edit(console, "nora", system="You mend clocks.")
    scene = f"recorded {conversation}"
    _, answer = await call(console, "POST", "/presets/nora/ask", {"scene": scene})
    assert [one["version"] for one in answer["answers"]] == [1, None]
    assert all("one" in one["text"] for one in answer["answers"])
    assert answer["differ"] is False
    status, page = await console.send("/presets/nora/ask", scene="first")
    assert status == 200
    assert "the same answer" in page
    status, _ = await call(console, "POST", "/presets/nora/ask", {"scene": "recorded web:x"})
    assert status == 404
    await edit(console, "nora", max_rounds="many")
    for what in ("test", "ask"):
        status, answer = await call(console, "POST", f"/presets/nora/{what}", {"scene": "first"})
        assert status == 422
        assert "Fix the errors" in answer["error"]
