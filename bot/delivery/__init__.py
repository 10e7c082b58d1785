"""Send what is in the outbox: in order, once."""
