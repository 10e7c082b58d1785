"""Build prompts from presets, histories, and messages, with no I/O except on preset files."""
