"""The form of a preset, made from its JSON schema."""
