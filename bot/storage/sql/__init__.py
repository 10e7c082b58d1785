"""The SQL store: SQLite and PostgreSQL."""
