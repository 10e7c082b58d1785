"""Personas of ChatHaruhi characters, and the character files that are shipped with Troupe."""
