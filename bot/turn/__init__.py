"""One turn of a conversation: claim, answer, finish."""
