"""Compose a prompt's draft from a preset, the session, and the new message."""
