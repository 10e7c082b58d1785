"""What a process keeps in memory of what the database holds, and how it notices changes."""
