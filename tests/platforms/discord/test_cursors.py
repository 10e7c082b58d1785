"""Cursors of the channels."""

from discord.utils import snowflake_time
from hypothesis import given
from hypothesis import strategies as st

from bot.platforms.discord.receiver import ChannelCursors
from bot.platforms.discord.shards import Shard


def make_cursors(bot_id: str = "") -> ChannelCursors:
    return ChannelCursors(bot_id, Shard())


def test_channel_without_stored_messages_has_no_cursor() -> None:
    cursors = make_cursors()
    assert cursors.due([(1, 10, 0), (2, 11, 0)], kept={1}) == {1: 10}


def test_postponed_cursors_are_stored_with_the_next_batch() -> None:
    cursors = make_cursors()
    cursors.load({"discord:channel 1": "10 0"})
    cursors.postpone(cursors.due([(1, 15, 0)], kept=set()))
    assert cursors.due([(2, 20, 0)], kept={2}) == {1: 15, 2: 20}


def test_frozen_cursor_does_not_move_until_the_next_load() -> None:
    cursors = make_cursors()
    cursors.load({"discord:channel 1": "10 0"})
    cursors.freeze([1])
    assert cursors.due([(1, 20, 0)], kept={1}) == {}
    cursors.load({"discord:channel 1": "10 0"})
    assert cursors.due([(1, 20, 0)], kept={1}) == {1: 20}


def test_cursors_of_a_second_bot_have_names_of_their_own() -> None:
    first, second = make_cursors(), make_cursors("77")
    assert second.to_stored_names({1: 10}) == {"discord@77:channel 1": "10 0"}
    assert not second.prefix.startswith(first.prefix)
    second.load({"discord@77:channel 1": "10 0", "discord@77:0/1 connected": "9"})
    assert second.stored == {1: 10}
    assert second.fully_received_until() == 9


def test_interrupted_catch_up_reads_again_from_where_it_began() -> None:
    day = 24 * 3600 * 1000 << 22  # in snowflakes
    cursors = make_cursors()
    on_disk = {"discord:channel 1": f"{day} 0", "discord:0/1 connected": "9"}
    cursors.load(on_disk)
    began = cursors.fully_received_until()
    on_disk |= cursors.catch_up_begins()
    on_disk["discord:channel 1"] = (
        f"{3 * day} 0"  # of this channel all was stored, and then it crashed
    )

    after_crash = make_cursors()
    after_crash.load(on_disk)
    assert after_crash.fully_received_until() == began

    on_disk |= after_crash.catch_up_ended(snowflake_time(4 * day))
    after_end = make_cursors()
    after_end.load(on_disk)
    assert after_end.fully_received_until() == 4 * day


messages = st.tuples(st.integers(1, 3), st.booleans(), st.booleans())  # channel, kept, batch ends


@given(st.lists(messages, max_size=40), st.integers(0, 40))
def test_restart_from_stored_cursors_misses_nothing(
    sent: list[tuple[int, bool, bool]], crash: int
) -> None:
    """At any crash, every message to keep is stored or newer than its channel's stored cursor."""
    cursors, on_disk, safe = make_cursors(), dict[int, int](), set[tuple[int, int]]()
    batch: list[tuple[int, int]] = []
    keep: set[tuple[int, int]] = set()
    for number, (channel, kept, ends) in enumerate(sent[:crash], start=1):
        batch.append((channel, number))
        if kept:
            keep.add((channel, number))
        if not ends:
            continue
        fresh = keep & set(batch)
        due = cursors.due([(*one, 0) for one in batch], kept={channel for channel, _ in fresh})
        if fresh:
            safe |= fresh
            on_disk.update(due)
            cursors.mark_stored(due)
        else:
            cursors.postpone(due)
        batch = []
    assert all(one in safe or one[1] > on_disk.get(one[0], 0) for one in keep)
