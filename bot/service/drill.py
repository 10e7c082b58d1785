"""The deletion drill: store data of a fictitious person, forget the person, search for traces.

The messages take the normal path through the configured database and Redis. Only the platform and
the model are fake, so that nothing is sent to other services.
"""

import asyncio
import contextlib
import functools
import gc
import json
import secrets
import tempfile
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module  # noqa: TID251 # the client of Redis takes long to import
from itertools import count
from pathlib import Path
from types import BuiltinFunctionType, CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any

from pydantic import SecretStr
from sqlalchemy import BigInteger, Connection, Text, delete, func, or_, select
from typing_extensions import override

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.llama_cpp.slots import SlotOwner, SlotStore
from bot.backends.registry import EchoSettings
from bot.chat.incoming import (
    Address,
    ButtonPress,
    Incoming,
    IncomingMessage,
    Person,
    Reaction,
    ReactionChange,
    WakeReason,
)
from bot.chat.memory import Memory, MemoryPlace, MemorySubject, SubjectKind
from bot.chat.outgoing import Limits, OutgoingMessage
from bot.chat.session import Summary, fingerprint_turns
from bot.errors import Refused, StoreError
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformSpec
from bot.platforms.terminal.local_chat import PrintingSurface
from bot.ports import Intake
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.options import RunOptions
from bot.service.resources import open_resources
from bot.settings import AccessSettings, BudgetSettings, Settings
from bot.storage.column_types import list_encryptable_columns
from bot.storage.copying import get_primary_key, read_page
from bot.storage.data_kinds import KEPT_ID_REASONS
from bot.storage.events import DRILL_PLATFORM
from bot.storage.forgetting import TOMBSTONE_FILE
from bot.storage.leases import read_installation_id
from bot.storage.statements import SQL
from bot.storage.tables import metadata
from bot.turn.limits.rate_limits import LimitSettings
from bot.value_class import value_class

ROW_TAG = "troupe-drill"
"""Part of every id, name and text of the drill, so that its rows can be found and deleted."""
DATA_LOCATIONS = (
    *("turn.text", "inbox.payload", "outbox.text", "receipt.content", "receipt.preset"),
    *("feedback.person", "choice.value", "preset_version.content", "message_note.content"),
    *("summary.text", "memory.text", "file slots", "memory"),
)
"""Where the person's data must be found before the deletion."""
_PERSON, _TAGGED_WORDS = Person(f"drill:{ROW_TAG}-person", f"{ROW_TAG}-name"), f"{ROW_TAG}-words"
_REFUSED_WORDS = f"{_TAGGED_WORDS} that the platform refuses"
_PERSON_TEXTS = {"id": _PERSON.id, "name": _PERSON.name, "words": _TAGGED_WORDS}
_DM_CHAT, _GROUP_CHAT = Address("drill", f"{ROW_TAG}-chat"), Address("drill", f"{ROW_TAG}-group")
_OTHER_CHAT = Address("drill", f"{ROW_TAG}-chat", bot_id=ROW_TAG)  # its messages stay unanswered
_DRILL_SPEC = PlatformSpec(kind=DRILL_PLATFORM, factory="")
_RUN_OPTIONS = RunOptions(serves_http=False, answers_messages=False)
_DRILL_PRESETS = (
    {"name": ROW_TAG, "provider": "echo", "model": "echo", "context": "all"},
    {"name": f"{ROW_TAG}-local", "provider": "local", "model": "default"},
)
_FORGET_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 1.0
_SKIPPED_TYPES = (type, ModuleType, FunctionType, BuiltinFunctionType, CoroutineType, FrameType)


class _DrillSurface(PrintingSurface):
    def __init__(self) -> None:
        super().__init__(ROW_TAG)
        self.newest_message = ("", "")
        """The id of the newest message, and the data of its first button."""

    @override
    def limits(self, address: Address) -> Limits:
        return Limits(4000, "characters", 1.0, 0, has_buttons=True)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if _REFUSED_WORDS in message.content.text:
            raise Refused("refused by the deletion drill")
        self.newest_message = message.nonce, next((one.data for one in message.content.buttons), "")
        return message.nonce

    @override
    def _show(self, message_id: str, text: str) -> None:
        """Do nothing, because nobody reads the messages."""

    @override
    def print_plain(self, text: str) -> None:
        """Do nothing, because nobody reads the messages."""


class _DrillPlatform(LocalPlatform):
    name = DRILL_PLATFORM
    account = "a drill"

    def __init__(self, surface: _DrillSurface) -> None:
        self.surface = surface

    @override
    async def run(self, intake: Intake) -> None:
        """Do nothing, because the drill passes its messages to the intake itself."""


@value_class
class DrillResult:
    """How often the person was found, by location: a table column, Redis, memory or a file."""

    mentions_before: Mapping[str, int]
    mentions_after: Mapping[str, int]
    """The counts after the deletion."""
    retained_id_counts: Mapping[str, int]
    """The counts of ids that are kept on purpose."""


async def run_drill(settings: Settings) -> DrillResult:
    """Run the deletion drill; raises `StoreError` if one of the places had no data to delete."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = _make_drill_settings(settings, folder)
        resources_context = open_resources(settings, [_DRILL_SPEC], lambda _: None, _RUN_OPTIONS)
        resources, redis = await stack.enter_async_context(resources_context), None
        if settings.redis_url is not None:
            open_client = import_module("bot.storage.redis_client").open_client
            client = open_client(settings.redis_url.get_secret_value())
            redis = await stack.enter_async_context(contextlib.aclosing(client))
        arguments = (settings, resources, [_DRILL_SPEC], lambda _: None, _RUN_OPTIONS)
        drill = _Drill(Container(*arguments, owner=f"drill:{secrets.token_hex(6)}"), redis)
        drill.container.platforms = {DRILL_PLATFORM: _DrillPlatform(drill.surface)}
        await drill.clean_up()  # in case an earlier drill was killed
        stack.push_async_callback(drill.clean_up)
        return await drill.run()


def _make_drill_settings(settings: Settings, folder: Path) -> Settings:
    """Return the settings with the same database and Redis, but no other services."""
    presets_dir = folder / "presets"
    presets_dir.mkdir()
    for preset in _DRILL_PRESETS:
        (presets_dir / f"{preset['name']}.json").write_text(json.dumps(preset))
    changed_settings = {
        "database_url": SecretStr(settings.sqlalchemy_url),
        "data_dir": folder,
        "presets_dir": presets_dir,
        "default_preset": ROW_TAG,
        "providers": {"echo": EchoSettings(), "local": LlamaCppSettings()},
        "mcp_servers": {},
        "admins": frozenset({_PERSON.id}),
        "access": AccessSettings(),
        "budgets": BudgetSettings(),
        "limits": LimitSettings(),
    }
    return settings.model_copy(update=changed_settings)


@dataclass(eq=False)
class _Drill:
    container: Container
    redis: Any
    """The Redis client; None if Redis is not configured."""
    surface: _DrillSurface = field(default_factory=_DrillSurface)
    newest_row_keys: dict[str, Sequence[int]] = field(default_factory=dict)
    """For each table, the key of the newest row from before the drill."""
    keys: Iterator[str] = field(default_factory=lambda: (f"{ROW_TAG}:{one}" for one in count(1)))
    """The keys of the next events."""

    async def run(self) -> DrillResult:
        container, clock = self.container, self.container.clock
        for table in metadata.sorted_tables:
            if "id" in table.c and isinstance(table.c.id.type, BigInteger):
                query = select(func.max(table.c.id))
                max_id = await container.database.read(lambda c, one=query: c.execute(one).scalar())  # type: ignore[misc]
                self.newest_row_keys[table.name] = [max_id or 0]
        jobs = [container.conversation_pool.run, container.worker.leases.run]
        jobs += [container.lane_pool.run, container.decision_log.run]
        tasks = [asyncio.create_task(job()) for job in jobs]
        try:
            await self._store_all_data()
            mentions_before, _ = await self._count_mentions_and_kept_ids()
            places = DATA_LOCATIONS if self.redis is None else (*DATA_LOCATIONS, "redis window")
            empty_locations = [
                each for each in places if not any(one.startswith(each) for one in mentions_before)
            ]
            if empty_locations:
                raise StoreError(
                    f"the drill is inconclusive: no data was stored in {', '.join(empty_locations)}"
                )
            await self._request_deletion()
            deadline = clock.monotonic() + _FORGET_TIMEOUT_SECONDS
            while True:
                mentions_after, retained_id_counts = await self._count_mentions_and_kept_ids()
                if not mentions_after or clock.monotonic() >= deadline:
                    return DrillResult(mentions_before, mentions_after, retained_id_counts)
                await clock.sleep(_POLL_SECONDS)
        finally:
            await cancel_and_wait(tasks)

    async def _store_all_data(self) -> None:
        """Store every kind of data about the person."""
        name, scopes = f"{_PERSON.name} Ida", (_DM_CHAT.lane,)
        card = f"{name} | Ida paints {_TAGGED_WORDS}. | Ida greets {_TAGGED_WORDS}."
        lines = (f"/me I am {_TAGGED_WORDS}", "/settings me server", f"/character add {card}")
        for line in (*lines, f"/character use {name}", f"Hello {_TAGGED_WORDS}"):
            await self._receive_event(self._create_message(line))
        answer_id, _ = self.surface.newest_message
        arguments = (_DM_CHAT, next(self.keys), answer_id, _PERSON, Reaction.GOOD, _now(), scopes)
        await self._receive_event(ReactionChange(*arguments, is_private=True))
        for line, wake_reason in (
            (_REFUSED_WORDS, WakeReason.MENTION),
            (f"To others: {_TAGGED_WORDS}", None),
            ("/settings overhear on", WakeReason.COMMAND),
        ):
            await self._receive_event(self._create_message(line, _GROUP_CHAT, wake_reason))
        # Describing decisions stores the pending ones first.
        await self.container.decision_log.describe_recent_decisions(_GROUP_CHAT.channel)

        key, summaries = _DM_CHAT.conversation, self.container.summarizer.summaries
        history = await summaries.load_whole_session(key)
        last_turn = (history.session_number, history.turns[-1].id, fingerprint_turns(history.turns))
        await summaries.save(key, Summary(*last_turn, f"They said {_TAGGED_WORDS}"))
        slots_folder, clock = self.container.settings.data_dir / "slots", self.container.clock
        memories = self.container.memories
        subject = MemorySubject(SubjectKind.PERSON, _PERSON.id, _PERSON.name)
        place = MemoryPlace.from_event(_DM_CHAT, scopes, is_private=True)
        memory = Memory(subject, f"They like {_TAGGED_WORDS}", _PERSON.id, place, conversation=key)
        await memories.add(memory, history.turns[-1:])
        await memories.add(replace(memory, text=f"I am {_TAGGED_WORDS}", is_derived=False))
        slot_store = SlotStore(slots_folder, "model", clock, max_bytes=1, max_age_seconds=1)
        slot_store.load_saved_slots()
        (slots_folder / slot_store.state_file_name(SlotOwner(key, ROW_TAG))).write_text(
            _TAGGED_WORDS
        )
        await self.container.inbox.receive([self._create_message(_TAGGED_WORDS, _OTHER_CHAT)], {})
        values = {"of": _OTHER_CHAT.conversation, "newer_than": 0, "most": 1}
        [[number, *_]] = await self.container.database.fetch(SQL["following_messages"], **values)
        await self.container.database.execute(SQL["set_message_aside"], message=number)

    async def _request_deletion(self) -> None:
        await self._receive_event(self._create_message("/forget me"))
        message_id, data = self.surface.newest_message
        arguments = (_DM_CHAT, next(self.keys), message_id, _PERSON, data, _now(), (_DM_CHAT.lane,))
        await self._receive_event(ButtonPress(*arguments, is_private=True))

    def _create_message(
        self, text: str, address: Address = _DM_CHAT, wake_reason: WakeReason | None = WakeReason.DM
    ) -> IncomingMessage:
        key, is_private = next(self.keys), address is not _GROUP_CHAT
        scopes = (address.lane,) if is_private else (address.lane, f"drill:guild:{ROW_TAG}")
        message_arguments = (address, key, key, _PERSON, text, _now(), wake_reason, scopes)
        return IncomingMessage(*message_arguments, author_is_admin=True, is_private=is_private)

    async def _receive_event(self, event: Incoming) -> None:
        await self.container.supervisor.intake.receive([event], {})
        await self.container.wait_until_idle()

    async def _count_mentions_and_kept_ids(self) -> tuple[Counter[str], Counter[str]]:
        """Count the person's mentions, and separately the ids kept on purpose, by location."""
        mentions, id_counts = Counter[str](_find_object_mentions(self.container)), Counter[str]()
        async for place, text in self._read_stored_texts():
            for needle in _find_person_mentions(text):
                (id_counts if needle == "id" and place in KEPT_ID_REASONS else mentions)[place] += 1
        return mentions, id_counts

    async def _read_stored_texts(self) -> AsyncIterator[tuple[str, str]]:
        """Yield all texts that the drill may have stored, with their locations."""
        for table in metadata.sorted_tables:
            last_key: Sequence[Any] | None = self.newest_row_keys.get(table.name)
            while rows := await read_page(self.container.database, table, last_key):
                for column, value in (item for row in rows for item in row.items()):
                    yield f"{table.name}.{column}", self._decode_text(value)
                last_key = get_primary_key(table, rows[-1])
        prefix = f"troupe:{await read_installation_id(self.container.database)}:"
        for key in await self._list_redis_keys(f"{prefix}*"):
            is_text = await self.redis.type(key) == b"string"
            values = [await self.redis.get(key)] if is_text else []
            if await self.redis.type(key) == b"zset":
                values = await self.redis.zrange(key, 0, -1)
            kind = key.decode().removeprefix(prefix).partition(":")[0]
            yield f"redis {kind}", " ".join([key.decode(), *map(self._decode_text, values)])
        for path in self.container.settings.data_dir.rglob("*"):
            if path.is_file() and path.name != TOMBSTONE_FILE:
                yield f"file {path.parent.name}", path.read_text()

    def _decode_text(self, value: Any) -> str:
        with contextlib.suppress(StoreError):  # a value of Redis, encrypted with an unknown key
            value = self.container.database.codec.decode(value)
        if isinstance(value, bytes):
            with contextlib.suppress(zlib.error):  # a receipt is compressed
                value = zlib.decompress(value)
            value = bytes(value).decode("utf-8", "replace")
        return str(value)

    async def clean_up(self) -> None:
        """Delete all data that the drill stored."""
        await self.container.database.write(_delete_rows)
        await self.container.database.truncate_log()
        for key in await self._list_redis_keys(f"*{ROW_TAG}*"):
            await self.redis.delete(key)

    async def _list_redis_keys(self, pattern: str) -> list[bytes]:
        return [one async for one in self.redis.scan_iter(pattern)] if self.redis else []


def _delete_rows(connection: Connection) -> None:
    for table in metadata.sorted_tables:
        encryptable = list_encryptable_columns(table)
        texts = [one for one in table.c if isinstance(one.type, Text) and one not in encryptable]
        if texts:
            connection.execute(delete(table).where(or_(*(one.contains(ROW_TAG) for one in texts))))


def _find_person_mentions(text: str) -> list[str]:
    text = text.casefold()
    return [name for name, one in _PERSON_TEXTS.items() if one in text] if ROW_TAG in text else []


def _find_object_mentions(container: Container) -> Iterator[str]:
    """Yield the classes of objects in memory that contain the person's name or words."""
    lru_type = type(functools.lru_cache(_now))
    stack: list[tuple[Any, str]] = [(one, "") for one in gc.get_objects() if type(one) is lru_type]
    stack.append((container, ""))
    seen_ids: set[int] = set()
    while stack:
        one, holder_name = stack.pop()
        if isinstance(one, str) and set(_find_person_mentions(one)) - {"id"}:
            yield f"memory of {holder_name}"
        if id(one) in seen_ids or isinstance(one, _SKIPPED_TYPES):
            continue
        seen_ids.add(id(one))
        name = holder_name if type(one).__module__ == "builtins" else type(one).__name__
        stack += [(each, name) for each in gc.get_referents(one)]


def _now() -> datetime:
    return datetime.now(UTC)
