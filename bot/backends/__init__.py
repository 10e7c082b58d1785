"""The models: one file is one vendor."""
