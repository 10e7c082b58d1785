"""Decide what a message asks for, and which characters answer it."""
