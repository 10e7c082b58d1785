"""Immutable values that all layers exchange: messages, prompts, sessions, receipts. No I/O."""
