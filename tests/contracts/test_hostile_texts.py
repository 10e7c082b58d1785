"""Text from people is stored unchanged and has no effect on the stores."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import inspect, select

from bot.chat.incoming import IncomingMessage, Person, Quote, to_storable_text
from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Turn, TurnResult
from bot.errors import PresetError
from bot.intake import InboxIntake
from bot.prompting.presets.files import export_preset, load_presets, parse_preset
from bot.storage.tables import metadata, setting, turn
from tests.attacks import with_ours
from tests.contracts.conftest import SignalPeers
from tests.samples import begin, make_incoming, read_session
from tests.support.store import Store
from tests.waiting import wait_until

OURS = json.loads(Path(__file__).with_name("hostile_texts.json").read_text("utf-8"))
TEXTS = with_ours("store_injection", OURS)


def _wake_nobody(_keys: Sequence[str]) -> None:
    """Do nothing, because no worker runs here."""


@pytest.mark.parametrize(("title", "text"), TEXTS)
async def test_hostile_text_is_stored_unchanged(store: Store, title: str, text: str) -> None:
    stored = to_storable_text(text)
    assert stored == text or "\0" in text or any("\ud800" <= sign < "\ue000" for sign in text)
    sent = replace(make_incoming(text, quote=text), author=Person("telegram:1", text))

    await InboxIntake(store.inbox, _wake_nobody).receive([sent], {})
    claim, message = await begin(store.conversations)
    received = message.incoming
    assert isinstance(received, IncomingMessage)
    author, quote = received.author, Quote(None, None, stored)
    assert (received.text, received.quote, author.name) == (stored, quote, stored)

    turns = [Turn("user", text, author, datetime(2026, 11, 21, tzinfo=UTC), "nora", 1)]
    await store.conversations.finish(
        claim, message, TurnResult(turns=turns, outgoing=[OutgoingPart(0, MessageContent(text))])
    )
    await store.chat_settings.set(stored, "persona", stored, author.id)
    [found] = (await read_session(store.database)).turns
    [row] = await store.outbox.reserve_due_rows(["telegram:5"])
    assert (found.text, found.speaker, row.content.text) == (stored, author, stored)
    assert await store.chat_settings.get_all([stored], "persona") == {stored: stored}
    assert await store.chat_settings.get_all([f"{stored}%", "%", "_"], "persona") == {}
    await _check_nothing_else_changed(store)


async def _check_nothing_else_changed(store: Store) -> None:
    names = await store.database.read(lambda c: set(inspect(c).get_table_names()))
    assert names >= set(metadata.tables)
    stored = await store.database.read(
        lambda c: (len(c.execute(select(turn.c.id)).all()), len(c.execute(select(setting)).all()))
    )
    assert stored == (1, 1)


@pytest.mark.service
@pytest.mark.parametrize(("title", "text"), TEXTS)
async def test_hostile_text_arrives_as_a_single_signal(
    signals: SignalPeers, title: str, text: str
) -> None:
    key, received = to_storable_text(text), list[str]()
    signals.there.subscribe("q", received.extend)
    signals.here.publish("q", ["before", key])
    await wait_until(lambda: len(received) >= 2)
    assert received == ["before", key]


@pytest.mark.parametrize(("title", "text"), TEXTS)
def test_hostile_file_is_rejected_as_a_preset(tmp_path: Path, title: str, text: str) -> None:
    for name in ("preset.json", "preset.yaml"):
        (tmp_path / name).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(PresetError) as refused:
        load_presets(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
    assert "preset.yaml" not in str(refused.value)


@pytest.mark.parametrize(("title", "text"), TEXTS)
def test_hostile_text_in_a_preset_survives_export(title: str, text: str) -> None:
    value = {"name": "nora", "provider": "p", "model": "m", "system": to_storable_text(text)}
    preset = parse_preset(json.dumps(value), "x.json")
    assert preset.system == to_storable_text(text)
    assert parse_preset(export_preset(preset), "x.json") == preset
