"""What changes a conversation afterwards: edits, presses, and commands on one message."""
