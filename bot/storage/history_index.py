"""Find messages in channels with several histories, and create branches of histories."""

import json
from collections.abc import Collection, Mapping, Sequence

from bot.chat.incoming import HISTORY_SEPARATOR, Address
from bot.chat.session import MessageLocation
from bot.storage.database import Store, run_readonly, transaction
from bot.storage.rows import TURN_COLUMNS, encode_names
from bot.storage.statements import SQL, Unit, to_dict


class SqlHistoryIndex(Store):
    """Finds the histories of messages; only used in channels with several histories."""

    @run_readonly
    def find_conversation(self, address: Address, external_key: str) -> Unit[str | None]:
        """Return the conversation of a received event, or None if the event is no longer stored."""
        return (yield from _find_conversation(address, external_key))

    @run_readonly
    def locate(
        self, address: Address, message_ids: Collection[str], *, includes_copies: bool = False
    ) -> Unit[Sequence[MessageLocation]]:
        """Return where messages occur in histories: people's messages first, then answers."""
        id_values = {"ids": json.dumps(list(message_ids))}
        locations = []
        for turn, key, session, is_active in (
            yield SQL["locate_messages"].query({**_branch_parameters(address), **id_values})
        ):
            is_last_turn = is_active and (yield from _is_last_turn(turn, key, session, ""))
            locations.append(MessageLocation(key, turn, is_last_turn))
        channel_values = {"of_lane": address.lane, "of_channel": address.channel}
        for name, part in (yield SQL["parts_of_messages"].query({**channel_values, **id_values})):
            locations += yield from _locate_part(address, name, f"{name}/{part}", includes_copies)
        return locations

    @run_readonly
    def is_forgotten(self, address: Address, message_id: str) -> Unit[bool]:
        """Return whether the bot sent this message and all histories have forgotten it."""
        channel_values = {"of_lane": address.lane, "of_channel": address.channel}
        ids = json.dumps([message_id])
        part_rows = yield SQL["parts_of_messages"].query({**channel_values, "ids": ids})
        for name, part in part_rows:
            part_key = {"part": encode_names((f"{name}/{part}",))}
            if (yield SQL["answers_of_channel"].query({**_branch_parameters(address), **part_key})):
                return False
        return bool(part_rows)

    @run_readonly
    def find_newest_conversation(self, address: Address, person_id: str) -> Unit[str | None]:
        """Return the channel's conversation in which the person wrote last, if any."""
        rows = yield SQL["newest_of_person"].query(
            {**_branch_parameters(address), "person": person_id}
        )
        return rows[0][0] if rows else None

    @run_readonly
    def count_turns(self, address: Address) -> Unit[Mapping[str, int]]:
        """Return the number of turns in each of the channel's conversations, by key."""
        return to_dict((yield SQL["conversations_of_channel"].query(_branch_parameters(address))))

    @transaction
    def create_branch(self, key: str, location: MessageLocation) -> Unit[None]:
        """Copy a history up to a turn into conversation `key`, unless `key` already has turns."""
        if (yield SQL["has_turns"].query(of=key)):
            return
        rows = yield SQL["turns_until"].query(of=location.conversation, turn=location.turn_id)
        branch_values = {"conversation": key, "session": 1, "active": True}
        if rows:
            turns = [dict(zip(TURN_COLUMNS, row[1:], strict=True)) for row in reversed(rows)]
            yield SQL["append_turn"].query_many([{**branch_values, **turn} for turn in turns])


def _branch_parameters(address: Address) -> dict[str, object]:
    branch_prefix = f"{address.channel}{HISTORY_SEPARATOR}"
    return {
        "channel": address.channel,
        "branches": branch_prefix,
        "end_of_branches": f"{branch_prefix}\U0010ffff",
    }


def _find_conversation(address: Address, external_key: str) -> Unit[str | None]:
    bot_values = {"platform": address.platform, "bot_id": address.bot_id}
    rows = yield SQL["conversation_of_key"].query({**bot_values, "external_key": external_key})
    return rows[0][0] if rows else None


def _locate_part(
    address: Address, name: str, part: str, includes_copies: bool
) -> Unit[list[MessageLocation]]:
    external_key = name.removeprefix(f"{address.source}:")
    conversation_key = yield from _find_conversation(address, external_key)
    part_key = {"part": encode_names((part,))}
    if conversation_key is None or includes_copies:
        rows = yield SQL["answers_of_channel"].query({**_branch_parameters(address), **part_key})
    else:
        rows = yield SQL["answers_of_conversation"].query({"of": conversation_key, **part_key})
    if not rows and conversation_key is not None:
        return [MessageLocation(conversation_key, None, is_newest_message=True)]
    locations = []
    for turn, conversation, session in rows:
        is_last_turn = yield from _is_last_turn(turn, conversation, session, external_key)
        locations.append(MessageLocation(conversation, turn, is_last_turn))
    return locations


def _is_last_turn(turn: int, conversation: str, session: int, event_key: str) -> Unit[bool]:
    """Return whether nothing follows a turn except answers to the event `event_key`."""
    values = {"of": conversation, "in_session": session, "turn": turn, "answered": event_key}
    [[is_last_turn]] = yield SQL["is_last"].query(values)
    return bool(is_last_turn)
