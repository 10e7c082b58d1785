"""Lorebooks: texts added to a prompt when recent messages mention their keys."""
