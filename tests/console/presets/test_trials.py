"""Drafts tested before they are published: on recorded conversations, and by asking."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, Select, func, select

from bot.chat.web_channel import WebMessage
from bot.storage.tables import inbox, outbox, turn
from tests.support.console import Playground, call, edit


def _scalar(statement: Select[int], connection: Connection) -> int:
    return int(connection.execute(statement).scalar_one())


def _is_answered(count: int, shown: Sequence[WebMessage]) -> bool:
    return len(shown) == count and bool(shown[-1].buttons)


async def record(console: Playground, *texts: str) -> str:
    """Let nora answer in a channel of its own; return the conversation."""
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


async def test_unchanged_draft_has_the_same_prompts(console: Playground) -> None:
    conversation = await record(console, "one", "two")
    await edit(console, "nora", description="no part of any prompt")
    _, answer = await call(console, "POST", "/presets/nora/test")
    [trial] = answer["trials"]
    assert (trial["conversation"], trial["outcome"]) == (conversation, "same")
    assert trial["tokens_before"] == trial["tokens"] > 0


async def test_changed_texts_are_other_prompts_and_a_small_budget_is_over(
    console: Playground,
) -> None:
    await record(console, "one " * 30, "two " * 30)
    await edit(console, "nora", system="You mend clocks.")
    _, answer = await call(console, "POST", "/presets/nora/test")
    assert [one["outcome"] for one in answer["trials"]] == ["differs"]
    await edit(console, "nora", max_input_tokens=60)
    _, answer = await call(console, "POST", "/presets/nora/test")
    assert [one["outcome"] for one in answer["trials"]] == ["over"]
    await edit(console, "nora", max_input_tokens=2)
    _, answer = await call(console, "POST", "/presets/nora/test")
    assert [(one["outcome"], one["tokens"]) for one in answer["trials"]] == [("over", None)]
    page = await console.open("/presets/nora/test")
    assert "over the limit" in page


async def test_test_asks_and_stores_nothing(console: Playground) -> None:
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


async def test_both_versions_answer_the_same_question(console: Playground) -> None:
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


async def test_draft_with_mistakes_is_not_tested(console: Playground) -> None:
    await edit(console, "nora", max_rounds="many")
    for what in ("test", "ask"):
        status, answer = await call(console, "POST", f"/presets/nora/{what}", {"scene": "first"})
        assert status == 422
        assert "Fix the mistakes" in answer["error"]
