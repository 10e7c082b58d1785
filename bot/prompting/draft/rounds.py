"""Keep the last rounds of a conversation: one question with its answer is a round."""

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def rounds(messages: Sequence[Item], max_rounds: int) -> Sequence[Item]:
    """Count the newest message as the new question: `n` rounds are `2 * n - 1` messages.

    The preset's `system` is not among `messages` and always stays. Zero and less keep all, as in
    RodelAgent (SEEDS.md, [REAL 0-g]); it counts messages, whatever their roles.
    """
    return messages[-(2 * max_rounds - 1) :] if max_rounds > 0 else messages
