"""Contract of unreadable rows, on both databases: they do not affect other rows."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, insert, update

from bot.chat.incoming import Address
from bot.chat.session import TurnResult
from bot.errors import StoreError
from bot.prompting.presets.preset import Preset
from bot.routing.presets import HistoryScopes, PresetResolver
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessSignals
from bot.storage.forgetting import PersonalData
from bot.storage.receipts import Receipts
from bot.storage.reports import AnswerLog
from bot.storage.rows import encode_event
from bot.storage.tables import inbox, outbox, receipt, turn, web_channel
from bot.storage.web_channels import SqlWebChannels
from tests.samples import ALICE, begin, make_incoming
from tests.support.store import LANE, Store, answer, finish, present, said, texts_of

GOOD = encode_event(make_incoming("poison"))
BAD_EVENTS: Mapping[str, tuple[str, bytes | None]] = {
    "unknown kind": ("voted", GOOD),
    "no JSON": ("said", b"{"),
    "a list": ("said", b"[]"),
    "no keys": ("edited", b"{}"),
    "wrong type": ("said", GOOD.replace(b'"poison"', b"[7]")),
    "no UTF-8": ("said", b'{"text": "\xff"}'),
    "deep": ("said", b"[" * 100_000),
    "quote of another kind": ("said", b'{"quote": "words"}'),
    "nothing": ("pressed", None),
}

BAD_ROWS = tomllib.loads(Path(__file__).with_name("undecodable_rows.toml").read_text("utf-8"))


async def put(store: Store, table: Table, **values: Any) -> None:
    await store.write(insert(table).values(**values))


async def put_event(store: Store, kind: str, payload: bytes | None, key: str = "5:bad") -> None:
    await store.inbox.receive([make_incoming("poison", key=key)], {})
    bad = update(inbox).where(inbox.c.external_key == key).values(kind=kind, payload=payload)
    await store.write(bad)


@pytest.mark.parametrize("name", BAD_EVENTS)
async def test_unreadable_event_becomes_a_dead_letter_and_the_next_one_is_processed(
    store: Store, name: str
) -> None:
    await put_event(store, *BAD_EVENTS[name])
    await store.inbox.receive([make_incoming("next", key="5:2")], {})
    assert await store.inbox.find_in_progress(Address("telegram", "5"), "5:bad") == []
    [waiting] = await store.inbox.newest_unanswered([LANE], 9, 9)
    claim, message = await begin(store.conversations)
    assert message.incoming == waiting == make_incoming("next", key="5:2")

    [letter] = await store.letters.all()
    assert letter.reason.startswith("cannot be read: ")
    assert "poison" not in letter.reason
    assert await store.letters.text(letter.name) == letter.reason
    with pytest.raises(StoreError):
        await store.letters.retry(letter.name)
    assert [one.name for one in await store.letters.all()] == [letter.name]
    await store.conversations.finish(claim, message, TurnResult())
    assert await store.conversations.list_ready_conversations(9, ["telegram"]) == []


async def test_unreadable_later_event_is_not_gathered(store: Store) -> None:
    await store.inbox.receive([make_incoming("a", key="5:1")], {})
    await put_event(store, "said", b"{}")
    await store.inbox.receive([make_incoming("b", key="5:2")], {})
    claim, message = await begin(store.conversations)
    assert await store.conversations.load_waiting_after(claim, message, 9) == []
    assert len(await store.conversations.load_waiting_messages(claim, 9)) == 2
    finished = await store.conversations.finish(claim, message, TurnResult())
    assert finished.next_message is not None
    assert finished.next_message.incoming == make_incoming("b", key="5:2")


async def test_chat_with_only_unreadable_events_is_released(store: Store) -> None:
    await put_event(store, "voted", GOOD)
    await store.inbox.receive([make_incoming(chat="6", key="6:1")], {})
    [other] = await store.conversations.claim_next([LANE, "telegram:6"], "me", 60)
    assert other.claim.conversation == "telegram:6"
    assert await store.conversations.list_ready_conversations(9, ["telegram"]) == []


async def test_event_that_a_later_version_can_read_is_retried(store: Store) -> None:
    await put_event(store, "voted", GOOD)
    assert await store.conversations.claim_next([LANE], "me", 60) == []
    await store.write(update(inbox).values(kind="said"))
    [letter] = await store.letters.all()
    assert letter.reason == "an earlier version could not read it; retry it"
    assert await store.letters.retry(letter.name) == LANE
    _, message = await begin(store.conversations)
    assert message.incoming.author == ALICE  # type: ignore[union-attr]


async def test_forget_finds_a_person_in_an_unreadable_event(store: Store) -> None:
    await put_event(store, "voted", GOOD)
    await store.conversations.claim_next([LANE], "me", 60)
    await PersonalData(store.database, SystemClock()).forget_outside_histories("telegram:99")
    assert len(await store.letters.all()) == 1
    await PersonalData(store.database, SystemClock()).forget_outside_histories(ALICE.id)
    assert await store.letters.all() == []


@pytest.mark.parametrize("bad", BAD_ROWS["to_send"], ids=repr)
async def test_lane_continues_after_an_unreadable_row(store: Store, bad: Mapping[str, str]) -> None:
    await answer(store, "part 0", "part 1")
    await store.write(update(outbox).where(outbox.c.part == 0).values(**bad))
    [row] = await store.outbox.reserve_due_rows([LANE])
    assert row.decode_error
    following = present(await store.outbox.give_up(row, row.decode_error, "a part is missing"))
    assert following.content.text == "part 1"
    [letter] = await store.letters.all()
    assert (letter.name, letter.reason) == (f"out-{row.id}", row.decode_error)


async def test_unreadable_turns_are_omitted_from_the_history(store: Store) -> None:
    claim, _ = await finish(store, turns=[replace(said("a"), message_id="1")])
    of = {"conversation": LANE, "session": 1, "active": True}
    await put(store, turn, **of, role="narrator", text="b", at=1.0)
    await put(store, turn, **of, role="user", text="c", at=1e300, message_id="2")
    await put(store, turn, **of, role="assistant", text="d", at=2.0, speaker_id="x")
    assert await texts_of(store) == ["a"]
    assert await store.conversations.load_exchange(claim, "2", 9) is None
    found = present(await store.conversations.load_exchange(claim, "1", 9))
    assert found.answers == ()
    assert len(await store.conversations.find_turns(claim, ["1", "2"])) == 1


async def test_unreadable_receipts_settings_and_web_channels_are_omitted(store: Store) -> None:
    await put(store, receipt, conversation=LANE, turn="t", at=1.0, content=b"no zlib")
    assert await Receipts(store.database).find_for_last_message(LANE) == []
    assert await AnswerLog(store.database).find(1) is None
    await store.chat_settings.set(LANE, "scope", "galaxy", "telegram:1")
    nora = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
    resolver = PresetResolver({"nora": nora}, "nora", store.chat_settings)
    scopes = HistoryScopes(store.chat_settings, resolver)
    assert await scopes.find([LANE]) is None
    channels = SqlWebChannels(store.database, InProcessSignals())
    await put(store, web_channel, id="w1", revision=0, content=b"{}", created_at=1.0)
    assert await channels.get("w1") is None
    assert await channels.all() == []
