"""Send the messages in the outbox: in order within a chat, and each exactly once."""
