"""Fit the past into the context: the newest turns win, and a question keeps its answer."""

from collections.abc import Callable, Sequence

from bot.chat.prompt import Message

# What a chat template wraps around a message, generously: <|im_start|>assistant\n ... <|im_end|>\n
TOKENS_AROUND_A_MESSAGE = 8

Count = Callable[[Sequence[str]], Sequence[int]]


def costs(messages: Sequence[Message], count: Count) -> Sequence[int]:
    """What each message takes of the context, in tokens."""
    contents = [message.content for message in messages]
    return [tokens + TOKENS_AROUND_A_MESSAGE for tokens in count(contents)]


def fit(history: Sequence[Message], tokens: int | None, count: Count) -> Sequence[Message]:
    """Keep the newest messages that cost at most this many tokens together; None keeps all.

    The result never begins with an answer whose question was dropped.
    """
    if tokens is None:
        return history
    kept = len(history)
    for price in reversed(costs(history, count)):
        tokens -= price
        if tokens < 0:
            break
        kept -= 1
    while kept < len(history) and history[kept].role == "assistant":
        kept += 1
    return history[kept:]
