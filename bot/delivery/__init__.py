"""Send the outbox: in order within a chat, and each row exactly once."""
