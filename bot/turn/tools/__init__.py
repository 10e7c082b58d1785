"""What the tools of an answer read."""
