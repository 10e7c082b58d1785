"""Test who may use the bot: rules of a channel, a server and the installation."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from bot.routing.decide import decide_access

TARGETS = ("person telegram:1", "person telegram:2", "role discord:3", "channel discord:4")
_rules = st.dictionaries(st.sampled_from(TARGETS), st.sampled_from(["allow", "block"]))


def may_use(targets: set[str], levels: list[Mapping[str, str]]) -> bool:
    """Decide like the documentation: by the narrowest scope with a rule for the person."""
    for rules in levels:
        of_mine = {value for target, value in rules.items() if target in targets}
        if "block" in of_mine:
            return False
        if of_mine:
            return True
        if "allow" in set(rules.values()):
            return False
    return True


@given(st.sets(st.sampled_from(TARGETS)), st.lists(_rules, max_size=3))
def test_decision_equals_the_documented_rules(
    targets: set[str], levels: list[Mapping[str, str]]
) -> None:
    by_scope = {str(number): rules for number, rules in enumerate(levels)}
    access = decide_access(targets, by_scope)
    assert access.is_allowed == may_use(targets, levels)
    if access.rule not in {"", "only"}:
        value, _, target = access.rule.partition(" ")
        assert by_scope[access.scope][target] == value
        assert target in targets
