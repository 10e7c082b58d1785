"""Compose the draft of a prompt from a preset, the session and the new message."""
