"""The list of answers, the page of one answer with its prompt, and the comparison of two."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert

from bot.chat.access import ApiScope
from bot.chat.prompt import Message
from bot.chat.receipt import DroppedItem, PromptSpan
from bot.chat.session import MessageNote, PresetVersion, short_error_id
from bot.runtime.clock import SystemClock
from bot.storage.operation import SqlMessageNotes
from bot.storage.presets import PresetVersions
from bot.storage.tables import feedback
from bot.telemetry.logs import RecentEvents, create_failure_note
from tests.attacks import expanded, with_ours
from tests.support.console import (
    ConsoleUnderTest,
    Elements,
    MakeParts,
    answer_pages,
    receipt_of,
    store_answers,
)
from tests.support.store import RECEIPT

_MAX_CHARS = 20_000
HOSTILE = {
    "script": "</pre><script>alert(1)</script>",
    "attribute": "\" autofocus onfocus=alert(1) x='",
    "image": "<img src=x onerror=alert(1)>",
    "jinja": "{{ 7 * 7 }}{% for x in range(9) %}x{% endfor %}",
    "svg": "</text></svg><svg onload=alert(1)>",
}


@pytest.fixture
def make_parts(tmp_path: Path) -> MakeParts:
    return lambda database: [answer_pages(database, tmp_path)]


async def test_list_shows_answers_and_keeps_the_filter(console: ConsoleUnderTest) -> None:
    other = replace(RECEIPT, answer="And I am Nils.", preset="nils", reason=None)
    await store_answers(console, *[RECEIPT] * 60, other)
    await console.log_in()

    whole = await console.page("/answers")
    assert whole.count('<td class="num nowrap"><a href="/answers/') == 50
    assert 'href="/answers?before=12"' in whole
    filtered = await console.page("/answers?text=i+AM&cut_off=true")
    assert "And I am Nils." in filtered
    assert filtered.count('<td class="num nowrap"><a href="/answers/') == 1
    assert 'value="i AM"' in filtered


async def test_errors_of_earlier_runs_are_listed(console: ConsoleUnderTest) -> None:
    events, turn = RecentEvents(), "telegram:5:1"
    events(None, "warning", {"event": "answer_failed", "turn": turn, "reason": "503 <b>"})
    notes = [create_failure_note(events, turn), MessageNote("error:new", "{}")]
    await SqlMessageNotes(console.database, console.clock).add(notes)
    await console.log_in()
    page = await console.page("/answers?state=errors")
    assert f'href="/operation/errors/{short_error_id(turn)}"' in page
    assert "503 &lt;b&gt;" in page


async def test_answer_page_shows_the_prompt_and_its_parts(console: ConsoleUnderTest) -> None:
    await store_answers(console, RECEIPT, RECEIPT)
    liked = insert(feedback).values(receipt=2, person="telegram:7", reaction="👍", at=1.0)
    await console.database.write(lambda c: c.execute(liked).rowcount)
    await console.log_in()

    shown = await console.page("/answers/2")
    assert "👍 telegram:7" in " ".join(Elements(shown).text.split())

    for text in ("Hi 🙂", "The Inn", "0.50", "the budget was used up", "temperature", "121"):
        assert text in shown, text
    # 121 tokens of the prompt and 4 of the answer, at 1 and 2, and at 100 and 200 dollars
    assert "cheap/small$0.0001dear/big$0.0129" in " ".join(Elements(shown).text.split())
    assert 'href="/answers/2/compare/1"' in shown
    assert '<input type="hidden" name="conversation" value="telegram:5">' in shown
    assert "provider does not report its tokens" in await console.page("/answers/2?form=tokens")
    assert "Be Nora. 日本" in await console.page("/answers/2?form=text")


async def test_parameters_are_shown_with_their_origin(console: ConsoleUnderTest) -> None:
    content = {"parameters": {"temperature": 0.5, "seed": 4}, "stop_sequences": ["###"]}
    versions = PresetVersions(console.database, SystemClock())
    await versions.save([PresetVersion("nora", json.dumps(content), 3)])
    prompt = replace(
        RECEIPT.prompt, parameters={"temperature": 0.5, "seed": 5, "top_p": 1}, stop=("###", "Ann:")
    )
    await store_answers(console, replace(RECEIPT, prompt=prompt))
    await console.log_in()

    text = Elements(await console.page("/answers/1")).text

    for line in (
        "temperature0.5 from version 3 of the preset",
        "seed5 changed for this answer; the preset has 4",
        *("top_p1 default", "stop'###' from version 3 of the preset"),
        "stop'Ann:' names of the other speakers",
    ):
        assert line in text


async def test_secrets_are_masked_everywhere(console: ConsoleUnderTest) -> None:
    secret = "sk-canary"
    receipt = replace(
        RECEIPT,
        answer=secret,
        thoughts=secret,
        prompt=replace(RECEIPT.prompt, messages=(Message("user", secret),)),
        layout=(PromptSpan("newest", 0, name=secret),),
        dropped=(DroppedItem("lore", secret, "why"),),
    )
    await store_answers(console, receipt, receipt)
    await console.log_in()

    for path in (
        *("/answers", "/answers/2", "/answers/2?form=text", "/answers/2/compare/1"),
        *("/api/v1/answers", "/api/v1/answers/2", "/api/v1/answers/2/prompt"),
        "/api/v1/answers/2/prompt?form=text",
    ):
        shown = await console.page(path)
        assert "***" in shown
        assert secret not in shown


async def test_api_returns_the_same_data_and_404_for_unknown_answers(
    console: ConsoleUnderTest,
) -> None:
    await store_answers(console, RECEIPT)
    headers = await console.bearer(ApiScope.READ)
    for path in ("/answers/2", "/answers/x", f"/answers/{10**30}", "/api/v1/answers/2"):
        assert (await console.client.get(path, headers=headers)).status == 404, path

    listed, detail = await console.read("/answers"), await console.read("/answers/1")
    tokens = await console.client.get("/api/v1/answers/1/prompt?form=tokens", headers=headers)

    assert [one["number"] for one in listed["answers"]] == [1]
    assert detail["sections"].keys() == {"system", "stories", "newest"}
    assert sum(detail["sections"].values()) == detail["prompt_tokens"] == 121
    assert tokens.status == 409


async def test_hostile_texts_are_escaped(console: ConsoleUnderTest) -> None:
    hostile = [
        *with_ours("markup", HOSTILE),
        *(one for kind in ("ssti", "special_tokens", "name_spoof") for one in with_ours(kind, {})),
    ]
    texts: list[tuple[str, str]] = []
    present = (one.values for one in hostile if one.values[1] is not None)  # without ../shared
    for title, given in present:
        text = given if isinstance(given, str) else str(given)
        if isinstance(given, dict) and "gen" in given:
            text = expanded(given)
        texts.append((str(title), text[:_MAX_CHARS].replace("\r", "") or "x"))
    # The pages of the first and the last answer have other links.
    stored = "the first", *(text for _, text in texts), "harmless", "the last"
    await store_answers(console, *map(receipt_of, stored))
    await console.log_in()

    for path in ("/answers/{}", "/answers/{}?form=text"):
        harmless = Elements(await console.page(path.format(len(texts) + 2)))
        for number, (title, _) in enumerate(texts, 2):
            shown = Elements(await console.page(path.format(number)))
            marks = {"span": 0}  # of pieces of a prompt
            assert dict(shown.tags) | marks == dict(harmless.tags) | marks, title
            assert shown.attributes <= harmless.attributes | {("span", "class")}, title
    for number, (_, text) in enumerate(texts, 2):
        assert text in Elements(await console.page(f"/answers/{number}")).text


async def test_any_two_answers_can_be_compared(console: ConsoleUnderTest) -> None:
    other = replace(RECEIPT, preset="nils", answer="Hi there")
    await store_answers(console, RECEIPT, other, RECEIPT)
    await console.log_in()

    answer = await console.client.get("/answers/1/compare?other=2")

    assert answer.url.path == "/answers/2/compare/1"
    assert "Hi <del>🙂</del>" in (page := await answer.text())
    assert "Hi <ins>there</ins>" in page
    assert 'action="/answers/3/compare"' in await console.page("/answers/3")
    assert (await console.client.get("/answers/1/compare?other=")).status == 422
