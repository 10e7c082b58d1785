"""Decide what to do with a message, and log each channel's recent decisions for admins."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TypeAlias

import msgspec
import structlog

from bot.chat.command import Command, find_command, parse_command
from bot.chat.incoming import IncomingMessage, MediaItem, Request
from bot.chat.receipt import Receipt
from bot.chat.session import (
    ACCESS_KEY_PREFIX,
    MessageNote,
    Turn,
    display_name,
    has_readable_file,
    text_with_attachments,
)
from bot.errors import StoreError
from bot.ports import ChatSettings, Clock
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import is_ask_command
from bot.routing.presets import INSTALLATION, ActiveCharacters, ActivePreset
from bot.routing.speakers import Dice, SpeakerCandidate, select_speakers
from bot.storage.operation import SqlMessageNotes
from bot.texts.text import StoredPattern, Text, join_texts, marked, to_translatable, translatable
from bot.value_class import value_class

_REMEMBER_REQUEST = re.compile(
    r"(?:please )?remember (?:this|that)[.!]?|请?记住(?:这个|这句话?|这条|这件事)?[。！!]?",
    re.IGNORECASE,
)
"""Matches replies that ask the bot to remember the quoted message."""


@value_class
class Answer:
    """One or more characters answer the message."""

    speakers: tuple[ActivePreset, ...]
    """The characters that answer, in this order; at least one."""
    candidates: tuple[SpeakerCandidate, ...]
    """All active characters, each with the reasons why it answers or not."""


@value_class
class Observe:
    """The message is added to the history without an answer."""

    candidates: tuple[SpeakerCandidate, ...] = ()


@value_class
class Ignore:
    """The message is neither answered nor stored."""

    candidates: tuple[SpeakerCandidate, ...] = ()


@value_class
class Unreadable:
    """The author is told that the message cannot be read, or that they opted out."""

    attachments: tuple[MediaItem, ...]


Decision: TypeAlias = Command | Answer | Observe | Unreadable | Ignore


def decide_on_message(
    incoming: IncomingMessage,
    active_characters: ActiveCharacters,
    recent_turns: Sequence[Turn],
    *,
    dice: Dice,
    now: datetime,
) -> Decision:
    """Decide how to handle a message.

    `recent_turns` precede it, oldest first; needed in threads and if several characters are active.
    """
    if incoming.author_is_bot:
        return Ignore()
    if incoming.is_withheld:
        return Ignore() if incoming.wake is None or incoming.is_late else Unreadable(())
    if incoming.is_late:
        return _decide_on_late_message(incoming, active_characters)
    if not (incoming.text.strip() or has_readable_file(incoming)):
        if incoming.wake is None:
            is_observed = incoming.attachments and active_characters.reads_all_messages
            return Observe() if is_observed else Ignore()
        return Unreadable(incoming.attachments) if incoming.attachments else Ignore()
    presets = active_characters.presets
    command = _parse_addressed_command(incoming, presets)
    if command is not None:
        return command
    candidates = select_speakers(presets, incoming, recent_turns, dice=dice, now=now)
    speakers = active_characters.select_members([one.preset for one in candidates if one.chosen])
    if speakers:
        return Answer(speakers, candidates)
    return Observe(candidates) if active_characters.reads_all_messages else Ignore(candidates)


def _decide_on_late_message(incoming: IncomingMessage, characters: ActiveCharacters) -> Decision:
    """Decide what to do with a message that is too old to answer: observe it, or run /forget."""
    command = _parse_addressed_command(incoming, characters.presets)
    if command is not None:
        return command if command.name == "forget" else Ignore()
    is_observed = incoming.wake is not None or characters.reads_all_messages
    return Observe() if is_observed and text_with_attachments(incoming).strip() else Ignore()


def _parse_addressed_command(
    incoming: IncomingMessage, presets: Sequence[Preset]
) -> Command | None:
    has_prompter = any(preset.prompter for preset in presets)
    if incoming.wake is None or (has_prompter and is_ask_command(incoming.text)):
        return None
    if incoming.quote is not None and _REMEMBER_REQUEST.fullmatch(incoming.text.strip()):
        return Command("memory", "add")
    return parse_command(incoming.text)


LAST_REFUSAL_KEY = "persona told"
"""The key of the last refusal that a person was told about; deleted with their persona."""
_ALWAYS_ALLOWED_COMMANDS = ("forget me", "export", "privacy", "settings me")
_ADMIN_COMMANDS_WHILE_OFF = ("access", "settings why")


@value_class
class Access:
    """Whether a person may use the bot, and the rule that decided this."""

    is_allowed: bool = True
    rule: str = ""
    """The rule: "block role discord:9", "off", "only" (only others are allowed), "" (no rule)."""
    scope: str = ""
    """The scope that contains the rule."""


def decide_access(
    rule_targets: Collection[str], scope_rules: Mapping[str, Mapping[str, str]]
) -> Access:
    """Decide access by the narrowest scope with a rule for these targets or only for others.

    Args:
        rule_targets: The author, roles and channels of a message, in the form "person telegram:77".
        scope_rules: For each scope, narrowest first, "allow" or "block" by target. Within a scope,
            blocks take precedence; if it allows any target, all others are blocked.
    """
    for scope, rules in scope_rules.items():
        for value in ("block", "allow"):
            if matches := sorted(target for target in rule_targets if rules.get(target) == value):
                return Access(value == "allow", f"{value} {matches[0]}", scope)
        if "allow" in rules.values():
            return Access(False, "only", scope)
    return Access()


MODEL_NOT_ALLOWED = translatable(
    "Only some roles may use this character's model here, and it has no other model. An admin can"
    " give you access."
)


@dataclass(eq=False)
class AccessRules:
    """Decides who may use the bot, by the rules of chats and of the installation."""

    chat_settings: ChatSettings
    is_admin: Callable[[Request], Awaitable[bool]]
    """Returns whether the author is an operator or an admin of the chat."""
    operators: Collection[str]
    """The ids of the people in `TROUPE_ADMINS`, who may use the bot everywhere."""
    read_author_roles: Callable[[Request], Awaitable[tuple[str, ...] | None]]
    """Asks the platform for the author's roles; returns None if it cannot."""
    _: KW_ONLY
    local_platforms: Collection[str] = ()
    """Platforms that only the operator can reach, such as the terminal."""
    fixed_rules: Mapping[str, str] = field(default_factory=dict)
    """The installation's rules from the environment."""
    reports_refusals: bool = True
    """Whether a refused person gets one notice of the refusal."""

    async def load(self, scopes: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the access rules of these scopes and the installation, by scope."""
        settings = await self.chat_settings.get_scopes([*scopes, INSTALLATION])
        all_scopes = (*scopes, INSTALLATION)
        scope_rules = {scope: select_access_rules(settings.get(scope, {})) for scope in all_scopes}
        scope_rules[INSTALLATION] |= self.fixed_rules
        return scope_rules

    async def is_bot_off(self, scopes: Sequence[str]) -> bool:
        """Return whether `/access off` applies to a chat."""
        return any("off" in rules for rules in (await self.load(scopes)).values())

    async def find(self, event: Request, *, ignores_off_rule: bool = False) -> Access:
        """Return whether an event's author may use the bot in that chat; admins are not exempt."""
        if event.address.platform in self.local_platforms:
            return Access()
        # Everybody is an admin of their private chat, so private chats have no rules.
        scope_rules = await self.load(() if event.is_private else event.scopes)
        if not any(scope_rules.values()):
            return Access()
        off_scope = next((scope for scope, rules in scope_rules.items() if "off" in rules), None)
        if off_scope is not None and not ignores_off_rule:
            return Access(False, "off", off_scope)
        person_id = event.author.id
        if person_id in self.operators:
            return Access()
        rule_targets = {f"person {person_id}", *(f"channel {one}" for one in event.scopes)}
        roles = await self._find_author_roles(event, scope_rules)
        decisions = [decide_access(rule_targets | (roles or set()), scope_rules)]
        if roles is None:  # apply the strictest decision that any role could lead to
            keys = {key for each in scope_rules.values() for key in each if key.startswith("role ")}
            decisions += [decide_access({*rule_targets, key}, scope_rules) for key in sorted(keys)]
        # Pairing replaces other refusals in a private chat, but no block.
        access = min(decisions, key=lambda one: (one.is_allowed, not one.rule.startswith("block ")))
        if event.is_private and not access.rule.startswith(("allow ", "block ")):
            rules = scope_rules[INSTALLATION]
            if f"paired person {person_id}" in rules:
                return Access(True, "paired", INSTALLATION)
            if (dm_rule := rules.get("dm", "open")) != "open":
                return Access(False, f"dm {dm_rule}", INSTALLATION)
        return access

    async def may_run_admin_command(self, message: IncomingMessage, command_name: str) -> bool:
        """Return whether a rule lets the author run an admin command, such as "preset use"."""
        permissions = [f"command {command_name}", f"command {command_name.partition(' ')[0]}"]
        scope_rules = await self.load(() if message.is_private else message.scopes)
        roles = await self._find_author_roles(message, scope_rules) or ()
        rule_targets = {f"person {message.author.id}", *roles}
        return any(
            rule_targets & _find_holders(rules, permission)
            for rules in scope_rules.values()
            for permission in permissions
        )

    async def may_use(self, message: IncomingMessage, permission: str) -> bool:
        """Return whether an author has a `permission`: to use "tools" or the preset's "model".

        The narrowest scope that gives this permission to anybody decides; if there is none,
        everybody has it. If an answer goes to several people, all of them need it.
        """
        person_ids = set(message.charged_person_ids)
        if message.address.platform in self.local_platforms or person_ids <= set(self.operators):
            return True
        scope_rules = await self.load(() if message.is_private else message.scopes)
        holders_by_scope = (_find_holders(rules, permission) for rules in scope_rules.values())
        holders = next(filter(None, holders_by_scope), None)
        if holders is None:
            return True
        roles = await self._find_author_roles(message, scope_rules) or set()
        return bool(holders & roles) or {f"person {one}" for one in person_ids} <= holders

    async def _find_author_roles(
        self, event: Request, scope_rules: Mapping[str, Mapping[str, str]]
    ) -> set[str] | None:
        """Return the author's roles, or None if unknown; ask for them only if rules name roles."""
        roles = event.author_roles
        if roles is None:
            rule_keys = (key for rules in scope_rules.values() for key in rules)
            has_role_rules = any(" role " in f" {key}" for key in rule_keys)
            roles = await self.read_author_roles(event) if has_role_rules else ()
        return None if roles is None else {f"role {one}" for one in roles}

    async def find_refusal(self, event: Request) -> Access | None:
        """Return the access rule that refuses an event, or None if the event is allowed.

        A chat's rules do not refuse its admins, but `/access off` leaves them only a few commands.
        """
        access = await self.find(event)
        if access.is_allowed or _is_command(event, _ALWAYS_ALLOWED_COMMANDS):
            return None
        base_access = access
        if access.rule == "off":
            if not _is_command(event, _ADMIN_COMMANDS_WHILE_OFF):
                return access
            base_access = await self.find(event, ignores_off_rule=True)
        is_blocked_everywhere = not base_access.is_allowed and base_access.scope == INSTALLATION
        return None if not is_blocked_everywhere and await self.is_admin(event) else access

    async def should_report_refusal(
        self, message: IncomingMessage, access: Access, pairing_code: str
    ) -> bool:
        """Return whether to report a refusal to the author: once for each rule or pairing code."""
        if not (self.reports_refusals or pairing_code):
            return False
        scope = f"{message.author.id}@{access.scope}"
        rule = f"{access.rule} {pairing_code}".strip() + "\n"
        settings = await self.chat_settings.get_scopes([scope])
        refusal_note = rule + message.external_key
        last_refusal_note = settings.get(scope, {}).get(LAST_REFUSAL_KEY, "")
        if last_refusal_note.startswith(rule):
            return last_refusal_note == refusal_note  # the same message after a crash
        await self.chat_settings.set(scope, LAST_REFUSAL_KEY, refusal_note, message.author.id)
        return True


def select_access_rules(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the access rules among a scope's settings, without the prefix of their keys."""
    return {
        key.removeprefix(ACCESS_KEY_PREFIX): value
        for key, value in settings.items()
        if key.startswith(ACCESS_KEY_PREFIX)
    }


def _find_holders(rules: Mapping[str, str], permission: str) -> set[str]:
    """Return the people and roles to which a scope's rules grant a permission."""
    return {key.removeprefix(f"{permission} ") for key in rules if key.startswith(f"{permission} ")}


def _is_command(event: Request, commands: Sequence[str]) -> bool:
    if not isinstance(event, IncomingMessage) or event.wake is None:
        return False
    return bool(find_command(event.text, commands))


_log = structlog.get_logger(__name__)
_MAX_LOGGED_MESSAGES = 8
_MAX_LOGGED_CHARS = 40
_SECONDS_BETWEEN_BATCHES = 2.0
_MAX_PENDING_NOTES = 1000
_ANSWERED_TEXT = marked("answered")
_OBSERVED_TEXT = marked("not answered, but remembered")
_IGNORED_TEXT = marked("not answered")
_PERSON_REFUSED_TEXT = StoredPattern(marked("{name} may not use me here: {rule} ({scope})"))
_SUBSTITUTE_TEXT = StoredPattern(marked("{name}: {used} answered in place of {expected}"))


@value_class
class _LoggedDecision:
    """A decision on a message, stored as data and described in the reader's language."""

    outcome: str
    """The outcome in English, translated when it is displayed."""
    name: str = ""
    """The author's name; empty: the outcome is a complete sentence."""
    begin: str = ""
    """The beginning of the message's text."""
    candidates: tuple[SpeakerCandidate, ...] = ()

    def describe(self) -> Text:
        outcome = to_translatable(self.outcome)
        if not self.name:
            return outcome
        candidate_reasons = join_texts(map(_describe_candidate, self.candidates), "; ")
        values = {"text": self.begin, "outcome": join_texts([outcome, candidate_reasons], ": ")}
        return translatable("{name}: “{text}” – {outcome}", name=self.name, **values)


_encode_decision = msgspec.json.Encoder().encode
_decode_decision = msgspec.json.Decoder(_LoggedDecision).decode


@dataclass(eq=False)
class DecisionLog:
    """Logs each channel's recent decisions for admins, stored in batches."""

    notes: SqlMessageNotes
    clock: Clock

    def __post_init__(self) -> None:
        self._new_notes: list[MessageNote] = []
        self._has_pending_notes = asyncio.Event()

    async def run(self) -> None:
        """Store pending decisions until cancelled, then store the remaining ones."""
        try:
            while True:
                await self._has_pending_notes.wait()
                await self.clock.sleep(_SECONDS_BETWEEN_BATCHES)
                await self._store()
        finally:
            await self._store()

    def record(self, message: IncomingMessage, decision: Decision) -> None:
        """Log the decision on a message, unless the message is a command."""
        match decision:
            case Answer():
                outcome = _ANSWERED_TEXT
            case Observe():
                outcome = _OBSERVED_TEXT
            case Ignore() if decision.candidates:
                outcome = _IGNORED_TEXT
            case _:
                return
        begin, name = cut_to_first_chars(message.text, _MAX_LOGGED_CHARS), message.author.name
        entry = _LoggedDecision(outcome, name, begin, decision.candidates)
        self._add_note(message.address.channel, entry, message.author.id)

    def record_refusal(self, message: IncomingMessage, access: Access) -> None:
        """Log the rule that refused a message, without the message's text."""
        text_values = {"name": message.author.name, "rule": access.rule, "scope": access.scope}
        outcome = _PERSON_REFUSED_TEXT.with_values(**text_values)
        self._add_note(message.address.channel, _LoggedDecision(outcome), message.author.id)

    def record_substitute_models(
        self, channel: str, speakers: Sequence[ActivePreset], receipts: Sequence[Receipt]
    ) -> None:
        """Log which answers came from a model other than the preset's own."""
        presets = [speaker.preset for speaker in speakers]
        expected_models = {preset.name: (preset.provider, preset.model) for preset in presets}
        for receipt in receipts:
            expected_model = expected_models.get(receipt.preset)
            used_model = (receipt.provider, receipt.prompt.model)
            if expected_model is not None and used_model != expected_model:
                models = {"used": "/".join(used_model), "expected": "/".join(expected_model)}
                outcome = _SUBSTITUTE_TEXT.with_values(name=display_name(receipt.preset), **models)
                self._add_note(channel, _LoggedDecision(outcome))

    async def describe_recent_decisions(self, channel: str) -> tuple[Text, ...]:
        """Return a line for each recent decision, oldest first; raises `StoreError`."""
        await self._store()
        descriptions = []
        for note in await self.notes.list_notes(_build_log_key(channel), _MAX_LOGGED_MESSAGES):
            with contextlib.suppress(msgspec.DecodeError):  # written by another version of Troupe
                descriptions.append(_decode_decision(note).describe())
        return tuple(descriptions)

    async def forget(self, channel: str, person_id: str | None = None) -> None:
        """Delete a channel's decisions, or only those about a person; raises `StoreError`."""
        key = _build_log_key(channel)
        self._new_notes = [
            note
            for note in self._new_notes
            if note.key != key or person_id not in {None, note.person_id}
        ]
        await self.notes.forget(key, person_id)

    def _add_note(self, channel: str, entry: _LoggedDecision, person_id: str | None = None) -> None:
        if len(self._new_notes) < _MAX_PENDING_NOTES:
            note = MessageNote(_build_log_key(channel), _encode_decision(entry).decode(), person_id)
            self._new_notes.append(note)
            self._has_pending_notes.set()

    async def _store(self) -> None:
        self._has_pending_notes.clear()
        notes, self._new_notes = self._new_notes, []
        if not notes:
            return
        try:
            await self.notes.add(notes)
        except StoreError as error:
            _log.warning("decisions_not_stored", reason=str(error))


def _build_log_key(channel: str) -> str:
    return f"why:{channel}"


def describe_silence(decision: Observe | Ignore) -> Text:
    """Describe, for each character, why it did not answer."""
    return join_texts([_describe_candidate(candidate) for candidate in decision.candidates], "; ")


def _describe_candidate(candidate: SpeakerCandidate) -> Text:
    reasons = join_texts(map(to_translatable, candidate.reasons), translatable(", "))
    return join_texts([display_name(candidate.preset), reasons], " ")


def cut_to_first_chars(text: str, max_chars: int) -> str:
    """Return the first `max_chars` characters of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else f"{line[:max_chars].rstrip()} …"
