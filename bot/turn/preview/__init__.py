"""What would happen to a message that is still being written."""
