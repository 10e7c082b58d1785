"""The repositories in SQL, on SQLite or PostgreSQL."""
