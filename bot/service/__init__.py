"""The running service: its container, its life cycle, and platform supervision."""
