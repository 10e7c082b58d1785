"""Build the exact prompt from a preset, a history and a message (no I/O except preset files)."""
