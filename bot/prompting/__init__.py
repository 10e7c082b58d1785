"""Build prompts from presets, histories, and messages; the only I/O is with preset files."""
