"""What a process reports of itself."""
