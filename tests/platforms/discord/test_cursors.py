"""Test the cursors, which contain the newest stored message of each channel."""

from dataclasses import replace

from discord.utils import snowflake_time

from bot.chat.incoming import Address
from bot.platforms.discord.receiver import ChannelCursors
from bot.platforms.discord.shards import Shard
from tests.samples import make_incoming

MESSAGE = replace(
    make_incoming("hello"),
    address=Address("discord", "1"),
    message_id="20",
    scopes=("discord:1", "discord:guild:7"),
)


def make_cursors(bot_id: str = "") -> ChannelCursors:
    return ChannelCursors(bot_id, Shard())


def test_cursor_contains_the_newest_message_and_its_guild() -> None:
    cursors = make_cursors()
    assert cursors.move_past([replace(MESSAGE, message_id=None)], {}) == {}, "a native command"
    assert cursors.move_past([MESSAGE, replace(MESSAGE, message_id="19")], {}) == {
        "discord:channel 1": "20 7"
    }
    assert cursors.move_past([MESSAGE], {}) == {}
    seen = {1: (30, 7), 3: (31, 7)}
    assert cursors.move_past([], seen) == {"discord:channel 1": "30 7"}, "3 has only bots"
    private = replace(MESSAGE, address=Address("discord", "2"), scopes=("discord:2",))
    assert cursors.move_past([private], {}) == {"discord:channel 2": "20 0"}


def test_frozen_cursor_does_not_move_until_the_next_load() -> None:
    cursors = make_cursors()
    cursors.load({"discord:channel 1": "10 7"})
    cursors.freeze_cursors_until_load([1])
    assert cursors.move_past([MESSAGE], {}) == {}
    cursors.load({"discord:channel 1": "10 7"})
    assert cursors.move_past([MESSAGE], {}) == {"discord:channel 1": "20 7"}


def test_cursors_of_a_second_bot_have_different_names() -> None:
    first, second = make_cursors(), make_cursors("77")
    assert second.move_past([MESSAGE], {}) == {"discord@77:channel 1": "20 7"}
    assert not second.cursor_prefix.startswith(first.cursor_prefix)
    second.load({"discord@77:channel 1": "10 0", "discord@77:0/1 connected": "9"})
    assert second.newest_stored_ids == {1: 10}
    assert second.find_catch_up_start_id() == 9


def test_interrupted_catch_up_starts_again_from_the_beginning() -> None:
    day = 24 * 3600 * 1000 << 22  # in snowflakes
    cursors = make_cursors()
    on_disk = {"discord:channel 1": f"{day} 0", "discord:0/1 connected": "9"}
    cursors.load(on_disk)
    began = cursors.find_catch_up_start_id()
    on_disk |= cursors.start_catch_up()
    # Everything of this channel was stored, and then it crashed.
    on_disk["discord:channel 1"] = f"{3 * day} 0"

    after_crash = make_cursors()
    after_crash.load(on_disk)
    assert after_crash.find_catch_up_start_id() == began

    on_disk |= after_crash.finish_catch_up(snowflake_time(4 * day))
    after_end = make_cursors()
    after_end.load(on_disk)
    assert after_end.find_catch_up_start_id() == 4 * day
