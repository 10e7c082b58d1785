"""Commands to operate an installation: nodes, jobs, dead letters, pauses, usage, data, keys."""

import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from bot.chat.access import COMMAND_LINE_ACTOR
from bot.chat.incoming import create_forget_requests, parse_address
from bot.chat.operation import EVERYWHERE, BackgroundWork, DeadLetter, Node, RoleHolder
from bot.chat.outgoing import Attachment
from bot.chat.usage import UsageRow, format_usage_csv
from bot.cli.text_io import print_exactly, print_line, print_progress, write_private_text
from bot.cli.typer_apps import create_command_app
from bot.commands.personas import UserPersonas
from bot.commands.privacy import export_messages
from bot.errors import SettingsError, UserError
from bot.extras import import_extra
from bot.platforms.registry import platform_specs
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import run_async
from bot.settings import Settings, read_settings
from bot.storage.chat_settings import CHAT_SETTINGS_TOPIC, SqlChatSettings
from bot.storage.data_dir import create_data_dir
from bot.storage.database import Database, database_exists, open_database
from bot.storage.dead_letters import DeadLetters
from bot.storage.forgetting import (
    TOMBSTONE_FILE,
    PersonalData,
    list_channel_conversations,
    list_server_conversations,
    record_tombstone,
)
from bot.storage.inbox import SqlInbox
from bot.storage.operation import AuditLog, NodeRegistry, PauseStore
from bot.storage.provider_keys import ProviderKeys
from bot.storage.rewriting import rewrite_texts
from bot.storage.usage import UsageTotals
from bot.turn.signals import CONVERSATIONS_TOPIC

T = TypeVar("T")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_SERVER_PREFIX = "guild:"
_NODE_COLUMNS = ("process", "roles", "version", "up", "seen", "answering", "holds")
_PlatformOption = Annotated[
    str | None,
    typer.Option(help="Only this platform, such as telegram, or this bot, such as telegram@77."),
]
_ChannelOption = Annotated[
    str | None,
    typer.Option(help="Only this channel and its topics, such as discord:81384788765712384."),
]
_DeadLetterName = Annotated[
    str,
    typer.Argument(help="The name that `troupe dead-letters list` shows, such as in-12 or out-7."),
]

app = create_command_app()
dead_letters_app = create_command_app("Show, retry, or drop messages that could not be handled.")
app.add_typer(dead_letters_app, name="dead-letters")


def require_database(settings: Settings) -> None:
    """Raise `SettingsError` if there is no database; the text names the settings to check."""
    if not database_exists(settings.sqlalchemy_url):
        raise SettingsError(
            f"there is no database in {settings.data_dir} yet: start the service first, or set"
            " TROUPE_DATA_DIR or TROUPE_DATABASE_URL to the value that the service uses"
        )


def use_installation(action: Callable[[Database], Awaitable[T]], *, must_exist: bool = True) -> T:
    """Run `action` on the database; create a missing database unless it `must_exist`."""
    settings = read_settings()
    if must_exist:
        require_database(settings)
    else:
        create_data_dir(settings.data_dir)

    async def run_action() -> T:
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            return await action(database)

    return run_async(run_action())


def change_installation(
    change: Callable[[Database], Awaitable[T]],
    action: str,
    subject: str,
    *,
    new_value: str = "",
    must_exist: bool = True,
) -> T:
    """Run `change` on the database; if its result is truthy, record it in the audit log."""

    async def change_and_record(database: Database) -> T:
        result = await change(database)
        if result:
            await log_change(database, action, subject, new_value=new_value)
        return result

    return use_installation(change_and_record, must_exist=must_exist)


async def log_change(
    database: Database, action: str, subject: str, old_value: str = "", new_value: str = ""
) -> None:
    audit_log = AuditLog(database, SystemClock())
    await audit_log.record(COMMAND_LINE_ACTOR, action, subject, old_value, new_value)


async def signal_all_processes(topic: str, keys: Sequence[str]) -> None:
    """Notify all processes of a change; without Redis, they find it in the database."""
    url = read_settings().redis_url
    if url is not None:
        signals_module = import_extra("bot.storage.redis_signals", "TROUPE_REDIS_URL")
        await signals_module.publish_signal(url.get_secret_value(), topic, keys)


def print_row_count(table_name: str, row_count: int) -> None:
    print_progress(f"{table_name}: {row_count} rows")


def format_age(seconds: float | None) -> str:
    """Format a duration in a suitable unit: "12 s", "3 min", "5 h", "2 d"; "-" for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print_table(column_names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [column_names, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded_cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print_line("  ".join(padded_cells).rstrip())


@app.command("nodes")
def show_nodes() -> None:
    """Show the processes of the installation.

    The list includes version, last report, and roles.

    Processes report every 10 seconds. A process that exited cleanly is not listed; a process that
    crashed is listed as "silent" for a week.
    """
    nodes = use_installation(lambda database: NodeRegistry(database, SystemClock()).list_nodes())
    if not nodes:
        print_line("no process has reported; is the service running on this database?")
        return
    _print_table(_NODE_COLUMNS, list(map(_to_node_row, nodes)))


def _to_node_row(node: Node) -> Sequence[str]:
    report = f"{format_age(node.seen_seconds)} ago{' (silent)' if node.is_silent else ''}"
    leases = ", ".join(node.leases) or "-"
    uptime = format_age(node.uptime_seconds)
    return (node.owner, node.roles, node.version, uptime, report, str(node.conversations), leases)


@app.command("jobs")
def show_jobs() -> None:
    """Show which process has which role, and the background work.

    For each role that only one process may have: which process has it, and for how long. For each
    kind of work: how many items are waiting, and how old the oldest is.
    """

    async def get_jobs(database: Database) -> tuple[Sequence[RoleHolder], Sequence[BackgroundWork]]:
        nodes = NodeRegistry(database, SystemClock())
        return await nodes.list_exclusive_roles(), await nodes.list_background_work()

    role_holders, background_work = use_installation(get_jobs)
    if role_holders:
        _print_table(("job", "process", "for", "lease"), list(map(_to_job_row, role_holders)))
    else:
        print_line("no role is leased: with SQLite, one process does everything")
    print_line("")
    rows = [(one.name, str(one.count), format_age(one.oldest_seconds)) for one in background_work]
    _print_table(("work", "count", "oldest"), rows)


def _to_job_row(job: RoleHolder) -> Sequence[str]:
    if job.lease_seconds <= 0:
        return (job.role, "nobody", "-", "-")
    return (job.role, job.owner, format_age(job.held_seconds), f"{job.lease_seconds:.0f} s")


@dead_letters_app.command("list")
def list_dead_letters() -> None:
    """List the dead letters, without their texts."""
    dead_letters = use_installation(lambda database: DeadLetters(database, SystemClock()).all())
    if not dead_letters:
        print_line("there are no dead letters")
        return
    rows = list(map(_to_dead_letter_row, dead_letters))
    _print_table(("name", "where", "what", "when (UTC)", "why"), rows)


def _to_dead_letter_row(dead_letter: DeadLetter) -> Sequence[str]:
    at = dead_letter.at
    time_text = "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    return (dead_letter.name, dead_letter.place, dead_letter.kind, time_text, dead_letter.reason)


@dead_letters_app.command("show")
def show_dead_letter(name: _DeadLetterName) -> None:
    """Print the text of a dead letter."""
    text = use_installation(lambda database: DeadLetters(database, SystemClock()).text(name))
    if text is None:
        raise _make_missing_letter_error(name)
    print_line(text)


@dead_letters_app.command("retry")
def retry_dead_letter(name: _DeadLetterName) -> None:
    """Process a message again, or resend part of an answer unless it has arrived after all.

    The part is sent as text, without its file, buttons, and character name.
    """

    async def retry(database: Database) -> str:
        key = await DeadLetters(database, SystemClock()).retry(name)
        if key is None:
            raise _make_missing_letter_error(name)
        await log_change(database, "retry dead letter", name, key)
        await signal_all_processes(CONVERSATIONS_TOPIC, [key])
        return key

    print_line(f"{name} will be retried in the conversation {use_installation(retry)}")


@dead_letters_app.command("drop")
def drop_dead_letter(name: _DeadLetterName) -> None:
    """Delete a dead letter's text permanently."""

    async def drop(database: Database) -> None:
        if not await DeadLetters(database, SystemClock()).drop(name):
            raise _make_missing_letter_error(name)
        await database.truncate_log()
        await log_change(database, "drop dead letter", name)

    use_installation(drop)
    print_line(f"dropped {name}")


def _make_missing_letter_error(name: str) -> UserError:
    return UserError(f"there is no dead letter {name!r}; `troupe dead-letters list` shows them")


@app.command()
def pause(platform: _PlatformOption = None, channel: _ChannelOption = None) -> None:
    """Stop answering until `troupe resume`.

    The scope is the whole installation, a platform, or a channel.

    Answers in progress are finished. Questions get a notice, at most every ten minutes per channel,
    and become context. Commands, edits, and deletions work as usual.
    """
    scope = parse_scope_options(platform, channel)

    def begin_pause(database: Database) -> Awaitable[bool]:
        return PauseStore(database, SystemClock()).begin(scope, COMMAND_LINE_ACTOR)

    if not change_installation(begin_pause, "pause answering", scope):
        raise UserError(f"{scope} is already paused; `troupe resume` ends the pause")
    print_line(f"paused: {scope}; takes effect within 2 seconds in every process")


@app.command()
def resume(platform: _PlatformOption = None, channel: _ChannelOption = None) -> None:
    """Start answering again after `troupe pause`.

    It ends the pause of the same scope: the installation, a platform, or a channel.
    """
    scope = parse_scope_options(platform, channel)
    paused_scopes: list[str] = []

    async def end_pause(database: Database) -> bool:
        pause_store = PauseStore(database, SystemClock())
        has_resumed = await pause_store.end(scope)
        paused_scopes.extend(one.scope for one in await pause_store.list_all())
        return has_resumed

    has_resumed = change_installation(end_pause, "resume answering", scope)
    pause_hint = f"; still paused: {', '.join(paused_scopes)}" if paused_scopes else ""
    if not has_resumed:
        raise UserError(f"{scope} is not paused{pause_hint}")
    print_line(f"resumed: {scope}{pause_hint}")


def parse_scope_options(platform: str | None, channel: str | None) -> str:
    """Return the scope that the options set; raise `UserError` if they conflict or are invalid."""
    if platform and channel:
        raise UserError("use either --platform or --channel")
    if channel:
        key = validate_key(channel, "--channel", "telegram:-1001234")
        if key.partition(":")[2].startswith(_SERVER_PREFIX):
            raise UserError(f"{channel} is a server; use one of its channels")
        return parse_address(key).channel
    if platform:
        _require_known_platform(platform)
    return platform or EVERYWHERE


def validate_key(key: str, option: str, example: str) -> str:
    """Return an option's value; raise `UserError` if it is not an id on a known platform."""
    platform, _, native_id = key.partition(":")
    _require_known_platform(platform)
    if not native_id:
        raise UserError(f"{option} must be a platform and an id, such as {example}")
    return key


def _require_known_platform(platform: str) -> None:
    known_kinds = [spec.kind for spec in platform_specs()]
    kind = platform.partition("@")[0]
    if kind not in known_kinds:
        raise UserError(f"{kind!r} is not a platform; the platforms are: {', '.join(known_kinds)}")


@app.command()
def usage(
    since: Annotated[
        str | None, typer.Option(help="The first day, such as 2026-11-01; by default this month.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="The last day; by default today.")] = None,
) -> None:
    """Print the cost of answers as CSV.

    There is a row for each day, person, channel, preset, and model. Days are in UTC. Answers by a
    model without a known price have no cost.
    """
    today = datetime.now(UTC).date()
    first_day = _parse_day(since) if since else today.replace(day=1)
    last_day = _parse_day(until) if until else today
    rows = run_async(read_usage(read_settings(), first_day, last_day))
    sys.stdout.write(format_usage_csv(rows))


async def read_usage(settings: Settings, first_day: date, last_day: date) -> Sequence[UsageRow]:
    """Return the usage from `first_day` to `last_day`, inclusive."""
    if not database_exists(settings.sqlalchemy_url):
        return ()
    end_day = last_day + timedelta(days=1)
    begin_time, end_time = (datetime.combine(day, time.min, UTC) for day in (first_day, end_day))
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        return await UsageTotals(database).usage_by_day(begin_time, end_time)


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is not a date; write it as 2026-11-01") from None


_PERSON_EXAMPLE = "telegram:123456789"
_PersonId = Annotated[str | None, typer.Argument(help=f"The person, such as {_PERSON_EXAMPLE}.")]
_UserOption = Annotated[str | None, typer.Option(help="The person, as an option.")]


@app.command()
def export(
    person: _PersonId = None,
    user: _UserOption = None,
    to: Annotated[
        Path | None, typer.Option(help="The new file to write; by default, standard output.")
    ] = None,
) -> None:
    """Export a person's messages and descriptions as JSON.

    This is the file that `/export` sends: the person's own messages in all channels, and no one
    else's. The service may keep running. Only its owner can read a file written with `--to`.
    """
    person = validate_key(person or user or "", "--user", _PERSON_EXAMPLE)
    if to is not None and to.exists():
        raise UserError(f"{to} already exists; choose another name")

    async def export_person(database: Database) -> tuple[Attachment, int, int]:
        clock = SystemClock()
        export_time = clock.utc_now()
        result = await export_messages(PersonalData(database, clock), person, export_time)
        if any(result[1:]):
            await log_change(database, "export person", person)
        return result

    file, message_count, other_item_count = use_installation(export_person)
    if not (message_count or other_item_count):
        raise UserError(f"nothing is stored about {person}")
    if to is None:
        print_exactly(file.text)
    else:
        write_private_text(to, file.text)
        print_line(f"wrote {message_count} messages of {person} to {to}")


@app.command()
def forget(
    person: _PersonId = None,
    user: _UserOption = None,
    channel: Annotated[
        str | None,
        typer.Option(help="The channel and its topics, such as discord:81384788765712384."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="The server, such as discord:guild:81384788765712384.")
    ] = None,
) -> None:
    """Delete the stored data of a person, a channel, or a server.

    It works like `/forget me` and `/forget channel`, even where the bot was removed. The service
    deletes each conversation in its turn or, if it is stopped, at its next start. For a server,
    it finds the conversations with an answer in the last 400 days.
    """
    subjects = [one for one in (person, user, channel, server) if one]
    if len(subjects) != 1:
        raise UserError("use exactly one of --user, --channel, and --server")
    [subject] = subjects
    user = person or user
    if user:
        validate_key(user, "--user", _PERSON_EXAMPLE)
    elif server:
        validate_key(server, "--server", "discord:guild:81384788765712384")
    scope = server or parse_scope_options(None, channel)

    async def request_deletions(database: Database) -> Sequence[str]:
        clock = SystemClock()
        record_deletion = partial(record_tombstone, read_settings().data_dir / TOMBSTONE_FILE)
        personal_data = PersonalData(database, clock, record_deletion)
        changed_scopes: Sequence[str] = [subject]
        if user:
            conversation_keys = await personal_data.list_conversations(user)
            await personal_data.forget_outside_histories(user)
            personas = UserPersonas(SqlChatSettings(database, clock))
            await personas.delete_settings(user, await personal_data.list_settings(user))
        else:
            get_conversations = list_channel_conversations if channel else list_server_conversations
            conversation_keys = await get_conversations(database, scope)
            # A private chat on Telegram has the person's id; `--user` deletes their characters.
            if not scope.partition(":")[2].isdecimal():
                changed_scopes = await personal_data.forget_characters_of_server(scope)
        request_name, request_time = f"operator:{secrets.token_hex(6)}", clock.utc_now()
        deletion_requests = create_forget_requests(
            conversation_keys, request_name, user, request_time, changed_scopes
        )
        await SqlInbox(database, clock).receive(deletion_requests, {})
        await log_change(database, "forget", subject)
        await signal_all_processes(CHAT_SETTINGS_TOPIC, changed_scopes)
        await signal_all_processes(CONVERSATIONS_TOPIC, conversation_keys)
        return conversation_keys

    conversation_keys = use_installation(request_deletions)
    print_line(f"conversations in which {subject} will be forgotten: {len(conversation_keys)}")


def _import_encryption() -> Any:
    return import_extra("bot.storage.fernets", "encryption")


keys_app = create_command_app("Store providers' keys in the database, encrypted.")
app.add_typer(keys_app, name="keys")


@keys_app.command("new")
def print_new_key() -> None:
    """Print a new key for TROUPE_ENCRYPTION_KEYS; keep it outside the database."""
    print_line(_import_encryption().generate_encryption_key())


@keys_app.command("add")
def add_key(
    provider: Annotated[str, typer.Argument(help="The id of the provider, such as openai.")],
) -> None:
    """Store a provider's key, encrypted; type it at a prompt or pass it on standard input."""
    cipher = _import_encryption().KeyCipher(read_settings().all_encryption_keys)
    key = typer.prompt("Key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise UserError("there is no key on standard input")
    token = cipher.encrypt(provider, key.strip())

    async def add_encrypted_key(database: Database) -> None:
        await ProviderKeys(database, SystemClock()).add(provider, token)
        await log_change(database, "add provider key", provider)

    use_installation(add_encrypted_key, must_exist=False)
    print_line(
        f"the key is stored; to use it, set TROUPE_PROVIDERS__{provider.upper()}__STORED_KEYS=true"
        " and restart Troupe"
    )


@keys_app.command("list")
def list_keys() -> None:
    """List the stored keys: number, provider, date, and the last four characters."""
    cipher = _import_encryption().KeyCipher(read_settings().all_encryption_keys)
    keys = use_installation(
        lambda database: ProviderKeys(database, SystemClock()).list_all(), must_exist=False
    )
    for one in keys:
        added_on = datetime.fromtimestamp(one.added_at, UTC).date()
        last_characters = cipher.decrypt(one.provider, one.token)[-4:]
        print_line(f"{one.number}  {one.provider}  {added_on}  …{last_characters}")


@keys_app.command("rotate")
def rotate_encryption_key() -> None:
    """Reencrypt all provider keys and texts with the first key in TROUPE_ENCRYPTION_KEYS.

    Put a new key in front of the old key in every process, rotate, then remove the old key. The
    service may keep running. An interrupted run resumes.
    """
    cipher = _import_encryption().KeyCipher(read_settings().all_encryption_keys)

    async def reencrypt_all(database: Database) -> tuple[int, int]:
        key_count = await ProviderKeys(database, SystemClock()).reencrypt_keys(cipher.rotate)
        await log_change(database, "rotate encryption key", "all")
        return key_count, await rewrite_texts(database, print_row_count)

    key_count, row_count = use_installation(reencrypt_all, must_exist=False)
    print_line(
        f"encrypted with the newest encryption key: {key_count} keys, {row_count} rows with texts"
    )


@keys_app.command("remove")
def remove_key(
    number: Annotated[int, typer.Argument(help="The number that `troupe keys list` shows.")],
) -> None:
    """Remove a stored key."""
    is_removed = change_installation(
        lambda database: ProviderKeys(database, SystemClock()).remove(number),
        "remove provider key",
        str(number),
        must_exist=False,
    )
    if not is_removed:
        raise UserError(f"there is no key {number}; `troupe keys list` shows them")
    print_line(f"removed key {number}")
