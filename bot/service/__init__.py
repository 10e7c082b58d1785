"""The running service: its components, life cycle, background jobs and platform supervision."""
