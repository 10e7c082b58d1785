"""Test access rules of threads, channels, servers, and the installation."""

import itertools
from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from bot.chat.command import Command
from bot.chat.incoming import Person, Request
from bot.commands.access import AccessHandlers, PairingCodes
from bot.commands.authority import AdminCheck
from bot.commands.request import CommandRequest, collect_handlers
from bot.ports import ChatSettings
from bot.routing.decide import AccessRules
from bot.routing.presets import INSTALLATION
from tests.fakes import FakeClock
from tests.samples import make_incoming

PLACES = ("discord:11", "discord:10", "discord:guild:9")
"""A thread, its channel and their server."""
PEOPLE, ROLES = ("discord:1", "discord:2"), ("discord:3", "discord:4")
OPERATOR = Person("discord:99", "Olga")
TARGETS = [f"person {one}" for one in PEOPLE] + [f"role {one}" for one in ROLES]
CHANNELS = [f"channel {one}" for one in PLACES[:2]]
PERMISSIONS = ("tools", "model", "command preset", "command preset use")
ALWAYS_ALLOWED = ("/forget me", "/export", "/privacy", "/settings me off")
FOR_ADMINS = ("/access on", "/settings why")
LINES = (*ALWAYS_ALLOWED, *FOR_ADMINS, "hello", "/help", "/privacy edit Hi.", "/forget last")

# A large minimum size makes several rules about one person likely.
_verdicts = st.one_of(
    st.just(dict[str, str]()),
    st.dictionaries(
        st.sampled_from([*TARGETS, *CHANNELS]), st.sampled_from(["allow", "block"]), min_size=3
    ),
)
_grants = st.dictionaries(
    st.sampled_from([f"{one} {target}" for one in PERMISSIONS for target in TARGETS]),
    st.just("given"),
    max_size=3,
)
_switch = st.sampled_from([*[dict[str, str]()] * 9, {"off": "on"}])
_private = st.fixed_dictionaries(
    {},
    optional={
        "dm": st.sampled_from(["closed", "pairing"]),
        f"paired person {PEOPLE[0]}": st.just("given"),
    },
)


def joined(*parts: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[Mapping[str, str]]:
    return st.builds(lambda *all_parts: dict(ChainMap(*all_parts)), *parts)


@dataclass(frozen=True)
class World:
    """A message, and the rules that apply to it, from the thread to the installation."""

    rules: Sequence[Mapping[str, str]]
    roles: frozenset[str]
    knows_roles: bool
    operators: frozenset[str]
    is_admin: bool
    is_private: bool
    line: str
    asked_with: tuple[str, ...]

    @property
    def levels(self) -> Sequence[Mapping[str, str]]:
        return self.rules[-1:] if self.is_private else self.rules

    # --- the specification -----------------------------------------------------------------------

    def refusing_level(self) -> int | None:
        """Return the level that refuses the author, -1 for the installation, or None."""
        if PEOPLE[0] in self.operators:
            return None
        possible = [self.roles]
        if not self.knows_roles:
            possible = [
                frozenset(one) for n in range(3) for one in itertools.combinations(ROLES, n)
            ]
        found = [self._refusing_level(one) for one in possible]
        return next((one for one in found if one is not None), None)

    def _refusing_level(self, roles: frozenset[str]) -> int | None:
        channels = PLACES[1:2] if self.is_private else PLACES
        mine = {f"person {PEOPLE[0]}", *(f"role {one}" for one in roles)}
        mine |= {f"channel {one}" for one in channels}
        refusing: int | None = None
        for number, rules in enumerate(self.levels, -len(self.levels)):
            verdicts = {rules[one] for one in mine & rules.keys()}
            if verdicts:
                return number if "block" in verdicts else None
            if "allow" in rules.values():
                refusing = number
                break
        if self.is_private:
            rules = self.rules[-1]
            if f"paired person {PEOPLE[0]}" in rules:
                return None
            return -1 if "dm" in rules else refusing
        return refusing

    def is_refused(self) -> bool:
        if self.line in ALWAYS_ALLOWED:
            return False
        is_admin, level = self.is_admin or PEOPLE[0] in self.operators, self.refusing_level()
        if any("off" in one for one in self.levels):
            return level == -1 or not (is_admin and self.line in FOR_ADMINS)
        return level == -1 or (level is not None and not is_admin)

    def may_use(self, what: str) -> bool:
        people = {PEOPLE[0], *self.asked_with}
        for rules in self.levels:
            holders = {one.removeprefix(f"{what} ") for one in rules if one.startswith(f"{what} ")}
            if holders:
                has_role = self.knows_roles and any(f"role {one}" in holders for one in self.roles)
                are_named = all(f"person {one}" in holders for one in people)
                return has_role or are_named or people <= self.operators
        return True

    def may_run_admin_command(self) -> bool:
        mine = {f"person {PEOPLE[0]}"}
        mine |= {f"role {one}" for one in self.roles} if self.knows_roles else set()
        names = ("command preset", "command preset use")
        return any(
            f"{name} {one}" in rules for rules in self.levels for name in names for one in mine
        )


_rarely = st.sampled_from([False, False, False, True])
_worlds = st.builds(
    World,
    st.tuples(
        *[joined(_verdicts, _grants, _switch)] * 3, joined(_verdicts, _grants, _switch, _private)
    ),
    st.frozensets(st.sampled_from(ROLES)),
    st.booleans(),
    st.one_of(st.just(frozenset[str]()), st.frozensets(st.sampled_from(PEOPLE))),
    _rarely,
    _rarely,
    st.one_of(st.just("hello"), st.sampled_from(LINES)),
    st.sampled_from([(), PEOPLE[1:]]),
)


class StoredRules(ChatSettings):
    def __init__(self) -> None:
        self.by_scope = defaultdict[str, dict[str, str]](dict)

    @override
    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, is_audited: bool = False
    ) -> None:
        if value is None:
            self.by_scope[scope].pop(key, None)
        else:
            self.by_scope[scope][key] = value

    @override
    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {one: self.by_scope[one] for one in scopes if one in self.by_scope}


class Writer:
    """An operator who writes rules with the /access commands."""

    def __init__(self, stored: StoredRules) -> None:
        admins = AdminCheck({OPERATOR.id}, never_admin, FakeClock(), stored)
        rules = AccessRules(stored, admins.is_admin, {OPERATOR.id}, unknown_roles)
        self.pairing = PairingCodes(rules, admins.clock)
        grantable = ("preset", "preset use")
        handlers = AccessHandlers(rules, admins, grantable, self.pairing, receive_nothing)
        self.handlers = collect_handlers(handlers)

    async def run(self, line: str, scopes: Sequence[str] = PLACES[1:]) -> None:
        action, _, argument = line.partition(" ")
        message = replace(
            make_incoming(f"/access {line}", author=OPERATOR, platform="discord"),
            scopes=tuple(scopes),
        )
        command = Command(f"access {action}", argument)
        active: Any = None
        request = CommandRequest(command, message, active, (), message.at)
        await self.handlers[command.name](request)

    async def write(self, name: str, value: str | None, place: int) -> None:
        """Write a rule for one of the `PLACES` or the installation, or delete it (None)."""
        where = ("here", "here", "server", "everywhere")[place]
        scopes = PLACES[min(place, 1) :]
        if name == "off":
            line = f"{'on' if value is None else 'off'} {where}"
        elif name == "dm":
            line = f"dm {value or 'open'}"
        elif name.startswith("paired "):
            asking = make_incoming(author=Person(PEOPLE[0], "Ada"), platform="discord")
            line = f"approve {await self.pairing.issue_code(asking)}"
        elif value == "given":
            line = f"{name} {where}"
        else:
            line = f"{value or 'reset'} {name} {where}"
        await self.run(line, scopes)


async def never_admin(_event: Request) -> bool:
    return False


async def unknown_roles(_event: Request) -> None:
    return None


async def receive_nothing(_events: object) -> None:
    return


_changed = st.lists(
    st.tuples(
        st.sampled_from(["off", *TARGETS, *CHANNELS, *(f"tools {one}" for one in TARGETS)]),
        st.integers(0, len(PLACES)),
    ),
    max_size=4,
)
"""Rules that are written and deleted before the rules of the world."""


_BLOCKED_ROLE = {
    f"paired person {PEOPLE[0]}": "given",
    f"role {ROLES[0]}": "block",
    f"person {PEOPLE[1]}": "allow",
}
_PAIRED_WITH_UNKNOWN_ROLES = World(
    ({}, {}, {}, _BLOCKED_ROLE), frozenset(), False, frozenset(), False, True, "hello", ()
)


@given(_worlds, _changed, st.booleans(), st.booleans())
@example(_PAIRED_WITH_UNKNOWN_ROLES, [], False, False)
async def test_decisions_match_a_simple_specification(
    world: World, changed: Sequence[tuple[str, int]], in_environment: bool, asks_for_roles: bool
) -> None:
    stored = StoredRules()
    writer = Writer(stored)
    for name, place in changed:
        given_value = "given" if name.startswith("tools ") else "block"
        await writer.write(name, given_value, place)
        await writer.write(name, None, place)
    for place, rules in enumerate(world.rules[:-1] if in_environment else world.rules):
        for name, value in rules.items():
            await writer.write(name, value, place)
    fixed = world.rules[-1] if in_environment else {}
    roles = tuple(world.roles) if world.knows_roles else None

    async def is_admin(event: Request) -> bool:
        return world.is_admin or event.author.id in world.operators

    async def read_author_roles(_event: Request) -> tuple[str, ...] | None:
        return roles

    access = AccessRules(stored, is_admin, world.operators, read_author_roles, fixed_rules=fixed)
    message = replace(
        make_incoming(world.line, author=Person(PEOPLE[0], "Ada"), platform="discord"),
        scopes=PLACES[1:2] if world.is_private else PLACES,
        is_private=world.is_private,
        author_roles=None if asks_for_roles else roles,
        asked_with=world.asked_with,
    )
    refusal = await access.find_refusal(message)
    assert (refusal is not None) == world.is_refused()
    if refusal is not None and refusal.rule.startswith(("allow ", "block ")):
        value, _, target = refusal.rule.partition(" ")
        level = (*PLACES, INSTALLATION).index(refusal.scope)
        assert world.rules[level][target] == value
    for what in ("tools", "model"):
        assert await access.may_use(message, what) == world.may_use(what)
    may_run = await access.may_run_admin_command(message, "preset use")
    assert may_run == world.may_run_admin_command()


async def test_pairing_code_survives_a_message_to_another_bot_of_the_platform() -> None:
    pairing = Writer(StoredRules()).pairing
    asked = make_incoming(author=Person(PEOPLE[0], "Ada"), platform="discord")
    code = await pairing.issue_code(asked)
    to_other_bot = replace(asked, address=replace(asked.address, bot_id="77"))
    assert await pairing.issue_code(to_other_bot) == code
    assert await pairing.issue_code(asked) == code
