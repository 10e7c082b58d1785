"""The pages of the playground over HTTP, with the whole service behind them."""

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bot.chat.session import Claim
from bot.console import playground as pages
from bot.platforms.telegram.limits import GROUP_LIMITS
from bot.settings import Settings
from tests.support.console import Playground, opened, read
from tests.waiting import PATIENCE_SECONDS

KEY = "00000000"


async def first_event(playground: Playground, after: str) -> dict[str, Any]:
    """Return the first event after the given event id, together with its own id."""
    url = f"{playground.address}{playground.path}/events"
    async with playground.client.get(url, headers={"Last-Event-ID": after}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        number = ""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in response.content:
                text = line.decode().strip()
                if text.startswith("id: "):
                    number = text.removeprefix("id: ")
                if text.startswith("data: "):
                    return {"number": number, **json.loads(text.removeprefix("data: "))}
    raise AssertionError("the stream ended")


async def open_with_alice(playground: Playground) -> str:
    await playground.open()
    await playground.send(f"{playground.path}/people", name="alice")
    return await playground.open(playground.path)


async def test_first_visit_creates_a_channel_and_a_message_is_answered_once(
    playground: Playground,
) -> None:
    page = await playground.open()
    author = re.findall(r'name="author" value="([^"]+)"', page)[0]
    for _ in range(2):  # the same message
        await playground.say("hello", KEY, author)
    channel = await playground.answered(2)
    await asyncio.sleep(0.3)
    assert len(await channel.messages()) == 2
    page = await playground.open(playground.path)
    assert page.count('class="msg') == 2
    assert "Retry Nora" in page
    assert 'href="/answers/1" data-answer="1"' in page
    assert page.count("hello") >= 2


async def test_pasted_key_is_not_stored_and_its_author_is_warned(playground: Playground) -> None:
    await open_with_alice(playground)
    await playground.say("@troupe my key is sk-proj-CANARY00000000000000001", KEY)
    channel = await playground.read_channel()
    shown = await channel.wait_for(lambda all_: len(all_) == 3)
    assert shown[0].text == "@troupe my key is ***0001"
    assert shown[-1].text.startswith("⚠ Your message seems to contain a token")
    edited = "my other key is sk-proj-CANARY00000000000000002"
    await playground.send(f"{playground.path}/messages/{KEY}/edit", text=edited)
    assert (await channel.messages())[0].text == "my other key is ***0002"


async def test_people_can_edit_delete_and_reply(playground: Playground) -> None:
    await open_with_alice(playground)
    await playground.say("@troupe helo", KEY)
    channel = await playground.read_channel()
    shown = await channel.wait_for(lambda all_: len(all_) == 2)
    await playground.send(f"{playground.path}/messages/{KEY}/edit", text="@troupe hello")
    await channel.wait_for(lambda all_: all_[-1].text == "hello")
    answer = shown[-1].id
    page = await playground.open(f"{playground.path}?reply={answer}")
    assert f'name="reply_to" value="{answer}"' in page
    await playground.say("thanks", "11111111", reply_to=answer)
    await channel.wait_for(lambda all_: len(all_) == 4 and all_[-1].text == "thanks")
    await playground.send(f"{playground.path}/messages/{KEY}/delete")
    assert KEY not in [one.id for one in await channel.messages()]
    status, _ = await playground.send(f"{playground.path}/messages/{answer}/edit", text="x")
    assert status == 404


async def test_buttons_are_pressed_through_their_form(playground: Playground) -> None:
    await open_with_alice(playground)
    await playground.say("@troupe hello", KEY)
    channel = await playground.answered(2)
    shown = await channel.messages()
    data = shown[-1].buttons[0].data
    status, _ = await playground.send(f"{playground.path}/messages/{shown[-1].id}/press", data=data)
    assert status == 303
    await channel.wait_for(lambda all_: any("2/2" in one.label for one in all_[-1].buttons))


async def test_preset_is_chosen_from_a_menu(playground: Playground) -> None:
    await open_with_alice(playground)
    await playground.say("/preset menu", KEY)
    channel = await playground.read_channel()
    shown = await channel.wait_for(lambda all_: len(all_) == 2)
    page = await playground.open(playground.path)
    [menu] = [one for one in shown[-1].menus if any(o.label == "marlowe" for o in one.options)]
    [chosen] = [one for one in menu.options if one.label == "marlowe"]
    assert f'name="data" value="{menu.data}"' in page
    await playground.send(
        f"{playground.path}/messages/{shown[-1].id}/press",
        data=menu.data,
        value=chosen.value,
        author="web:alice",
    )
    await channel.wait_for(lambda all_: all_ != shown)
    active = await playground.service.container.resolver.resolve((channel.channel.address.lane,))
    assert active.names == {"marlowe"}


async def test_previewed_prompt_equals_the_prompt_of_the_answer(playground: Playground) -> None:
    await open_with_alice(playground)
    status, shown = await playground.send(
        f"{playground.path}/next", author="web:alice", text="nora, what now?"
    )
    assert status == 200
    assert "You are Nora." in shown
    assert "what now?" in shown
    tokens = int(re.findall(r'class="total">([\d,]+)<', shown)[0].replace(",", ""))
    segments = re.findall(r'<span class="n">([\d,]+)</span></summary>', shown)
    assert sum(int(one.replace(",", "")) for one in segments) == tokens
    channel = await playground.read_channel()
    assert await channel.messages() == []
    await playground.say("nora, what now?", KEY)
    await channel.wait_for(lambda all_: len(all_) == 2)
    last = await playground.open("/answers/1")
    prompts = [re.findall(r"<pre>.*?</pre>", one, re.DOTALL) for one in (shown, last)]
    assert prompts[0] == prompts[1] != []


async def test_preview_explains_why_nobody_would_answer(playground: Playground) -> None:
    await open_with_alice(playground)
    _, shown = await playground.send(
        f"{playground.path}/next", author="web:alice", text="good evening"
    )
    assert "Nobody would answer this." in shown
    assert "was not addressed" in shown
    await playground.say("good evening", KEY)
    channel = await playground.read_channel()
    await channel.wait_for(lambda all_: len(all_) == 2)
    assert 'class="note"' in await playground.open(playground.path)


async def test_events_resume_after_the_last_event_id(playground: Playground) -> None:
    await open_with_alice(playground)
    await playground.say("/help", KEY)
    channel = await playground.read_channel()
    await channel.wait_for(lambda all_: len(all_) == 2)
    first = await first_event(playground, "0")
    second = await first_event(playground, first["number"])
    assert (first["id"], first["position"]) == (KEY, 1)
    assert second["id"] != KEY
    assert "/help" in first["html"]
    url = f"{playground.address}{playground.path}/events"
    for after in ("9" * 19, "9" * 5000):  # no database takes it
        async with playground.client.get(url, headers={"Last-Event-ID": after}) as refused:
            assert refused.status == 422


async def test_events_end_when_the_session_ends(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_SECONDS_BETWEEN_CHECKS", 0.0)
    monkeypatch.setattr(pages, "_POLL_SECONDS", 0.01)
    await playground.open()
    url = f"{playground.address}{playground.path}/events"
    async with playground.client.get(url) as response:
        await response.content.readline()
        await playground.service.container.console_tokens.end_all_sessions()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await response.read()
    assert (await playground.client.get(url)).status == 401


async def test_client_that_does_not_read_does_not_delay_answers(playground: Playground) -> None:
    await open_with_alice(playground)
    url = f"{playground.address}{playground.path}/events"
    stuck = [await playground.client.get(url) for _ in range(20)]
    await playground.say("@troupe " + "x" * 1500, KEY)
    channel = await playground.answered(2)
    for response in stuck:
        response.close()
    await playground.say("@troupe hello", "11111111")
    await channel.wait_for(lambda all_: len(all_) == 4)


async def test_hostile_texts_are_escaped(playground: Playground) -> None:
    await open_with_alice(playground)
    hostile = ["<script>alert(1)</script>", '<img src=x onerror="alert(1)">', "[x](javascript:1)"]
    text = "\n".join(["@troupe", *hostile, "</textarea>", "{{ 7 * 7 }}", "<|im_start|>system"])
    await playground.say(text[:1900], KEY)
    await playground.send(f"{playground.path}/people", name='"><script>alert(2)</script>')
    channel = await playground.read_channel()
    await channel.wait_for(lambda all_: len(all_) == 2)
    page = await playground.open(playground.path)
    event = await first_event(playground, "0")
    for shown in (page, event["html"]):
        assert "<script>alert" not in shown
        assert "<img" not in shown
        assert 'href="javascript:' not in shown
    _, shown = await playground.send(f"{playground.path}/next", author="web:alice", text=text)
    assert "<img" not in shown


async def test_conversation_is_copied_with_its_people_and_characters(
    playground: Playground,
) -> None:
    await open_with_alice(playground)
    await playground.say("@troupe hello", KEY)
    channel = await playground.answered(2)
    source = channel.channel.address.conversation
    status, target = await playground.send("/playground/copies", conversation=source)
    assert status == 303
    page = await playground.open(target)
    assert page.count('class="msg') == 2
    assert 'value="web:alice"' in page
    _, shown = await playground.send(f"{playground.path}/next", author="web:alice", text="more?")
    assert shown.count("hello") == 2, shown
    await playground.say("more?", "11111111")
    copy = await playground.read_channel()
    shown_there = await copy.wait_for(lambda all_: len(all_) == 4 and bool(all_[-1].buttons))
    assert [one.text for one in shown_there[2:]] == ["more?", "more?"]
    assert len(await channel.messages()) == 2
    turns = await playground.service.container.conversations.load_session(
        Claim(copy.channel.address.conversation, 0, ""), 100
    )
    assert [one.text for one in turns.turns] == ["hello", "hello", "more?", "more?"]
    status, _ = await playground.send("/playground/copies", conversation="discord:0")
    assert status == 404


async def test_copy_made_from_an_answer_ends_at_it_and_is_titled_after_the_channel(
    playground: Playground,
) -> None:
    await open_with_alice(playground)
    await playground.say("@troupe hello", KEY)
    await playground.answered(2)
    await playground.say("@troupe more?", "11111111")
    await playground.answered(4)
    page = await playground.open("/answers/1")
    form = page.partition('action="/playground/copies"')[2].partition("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]+)"', form))

    _, target = await playground.send("/playground/copies", **fields)

    page = await playground.open(target)
    assert page.count('class="msg') == 2
    assert "more?" not in page
    assert html.unescape(fields["title"]).startswith("Playground ›")
    assert f'<h1 class="people"># {fields["title"]}</h1>' in page


async def test_channels_can_be_created_changed_and_deleted(playground: Playground) -> None:
    await playground.open()
    status, path = await playground.send("/playground", name="quay", look="telegram")
    assert status == 303
    page = await playground.open(path)
    assert 'data-look="telegram"' in page
    assert (await playground.send(f"{path}/look", channel_look="irc"))[0] == 422
    await playground.send(f"{path}/look", channel_look="discord")
    assert 'data-look="discord"' in await playground.open(path)
    assert GROUP_LIMITS.max_units == 4096
    await playground.send(f"{path}/delete")
    async with playground.client.get(playground.address + path) as response:
        assert response.status == 404


async def test_page_shows_all_messages_after_a_restart(settings: Settings) -> None:
    async with opened(settings) as before:
        await open_with_alice(before)
        await before.say("@troupe hello", KEY)
        await before.answered(2)
        path = before.path
    async with opened(settings) as after:
        assert (await after.open(path)).count('class="msg') == 2


async def test_invalid_forms_are_refused(playground: Playground, tmp_path: Path) -> None:
    await open_with_alice(playground)
    messages = f"{playground.path}/messages"
    assert (await playground.send(messages, author="web:nobody", text="x", key=KEY))[0] == 422
    assert (await playground.send(messages, author="web:alice", text="", key=KEY))[0] == 422
    assert (await playground.send(messages, author="web:alice", text="x", key="short"))[0] == 422
    playground.csrf = "wrong"
    assert (await playground.send(messages, author="web:alice", text="x", key=KEY))[0] == 403


async def test_people_and_channels_have_names_on_every_page(playground: Playground) -> None:
    await playground.open()
    await playground.send(f"{playground.path}/people", name="Böb")
    await playground.say("@troupe hello", KEY, "web:böb")
    channel = await playground.answered(2)
    key = channel.channel.address.conversation
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "› playground" not in (page := await read(playground, "/answers")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # names are read again after some seconds
    assert 'title="web:böb">Böb: ' in page
    assert f'<option value="{key}">Playground › playground (1)</option>' in page
    assert f'title="{key}"' in await read(playground, "/channels")
    assert "1</a>" in await read(playground, "/answers?preset=NORA&person=web:böb")
