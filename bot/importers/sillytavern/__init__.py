"""SillyTavern's templates and presets as presets of Troupe (docs/sources.md#sillytavern)."""
