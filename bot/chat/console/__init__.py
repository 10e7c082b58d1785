"""What the console shows: stored answers, and what the service is doing."""
