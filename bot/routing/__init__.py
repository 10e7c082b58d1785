"""Decide what a message asks for: a command, an answer, or nothing; pure."""
