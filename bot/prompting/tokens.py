"""Count tokens offline, in the encoding of OpenAI's models; for other models it is an estimate."""

from collections.abc import Sequence

from toktok import batch_count

from bot.chat.prompt import Prompt
from bot.prompting.budget import costs


def count_tokens(texts: Sequence[str]) -> Sequence[int]:
    """Give the tokens of each text in cl100k_base; special tokens count as the text they are."""
    return batch_count(texts, "cl100k_base", threads=1)  # type: ignore[no-any-return]


async def estimated(prompt: Prompt) -> int:
    """What a prompt takes, roughly, where nobody can count it."""
    return sum(costs(prompt.messages, count_tokens))
