"""Lorebooks: which entries are activated by the recent messages."""
