"""Presets and characters: read them, work on drafts of them, publish and roll back."""
