"""The draft of a prompt and its token budget."""
