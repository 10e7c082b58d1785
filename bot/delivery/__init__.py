"""Send the rows of the outbox: in order within a chat, each exactly once."""
