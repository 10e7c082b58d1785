"""LazyLLM's prompters: Alpaca instructions and chat messages, with form fields."""

from bot.prompting.prompters.prompters import AlpacaPrompter, ChatPrompter

__all__ = ["AlpacaPrompter", "ChatPrompter"]
