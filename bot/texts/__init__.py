"""What the service says to people, and its translations."""
