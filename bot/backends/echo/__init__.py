"""A backend without a model, for tests and for trying out presets."""
