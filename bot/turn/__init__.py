"""Processing of one message: claim the conversation, answer, finish."""
