"""Pages about the service: its usage, its operation, its channels."""
