"""LazyLLM's prompters: Alpaca instructions and chat messages, with form fields."""

from bot.prompting.prompters.alpaca import AlpacaPrompter
from bot.prompting.prompters.chat import ChatPrompter

__all__ = ["AlpacaPrompter", "ChatPrompter"]
