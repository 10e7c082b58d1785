"""Frozen values that every layer exchanges: messages, prompts, sessions, receipts (no I/O)."""
