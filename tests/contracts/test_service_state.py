"""Contract of what operators see of queues, leases, channels and settings, on both databases."""

from bot.chat.incoming import Said
from bot.chat.operation import QueueState
from bot.chat.session import Turn, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.reports import ServiceState
from tests.samples import make_incoming
from tests.support.store import RECEIPT, Store, finish, take_message


async def test_queues_are_counted(store: Store) -> None:
    state = ServiceState(store.database, SystemClock())
    assert await state.queues() == QueueState(0, None, 0, 0, 0)
    assert await state.queue_ages() == (0.0, 0.0)
    claim, message = await take_message(store)
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    waiting = await state.queues()
    assert (waiting.conversations, waiting.held) == (2, 1)
    assert waiting.oldest_since is not None
    assert 0 < (await state.queue_ages())[0] < 60
    await store.conversations.finish(claim, message, TurnResult())
    assert (await state.queues()).conversations == 1


async def test_channels_are_listed(store: Store) -> None:
    await finish(store, receipts=[RECEIPT, RECEIPT])
    [channel] = await ServiceState(store.database, SystemClock()).channels(10)
    found = (channel.channel, channel.answers, channel.newest, channel.preset)
    assert found == ("telegram:5", 2, 2, "nora")


async def test_histories_of_a_conversation_are_told_by_session(store: Store) -> None:
    histories = ServiceState(store.database, SystemClock())
    claim, message = await take_message(store)
    said = message.incoming
    assert isinstance(said, Said)
    turns = [
        Turn("user", "hello", said.author, said.at, message_id="1"),
        Turn("assistant", "hi", None, said.at, "nora", 1),
    ]
    await store.conversations.finish(claim, message, TurnResult(turns))

    [session] = await histories.sessions("telegram:5", 10)
    assert (session.number, session.turns) == (1, 2)
    assert session.began_at == session.ended_at == said.at.timestamp()
    assert await histories.people("telegram:5", 10) == [said.author]
    assert [(number, one.text) for number, one in await histories.turns("telegram:5")] == [
        *((1, "hello"), (1, "hi"))
    ]
    assert await histories.sessions("telegram:6", 10) == []
