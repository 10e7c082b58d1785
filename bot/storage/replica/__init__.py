"""A hot standby of PostgreSQL that is read, and how far it is behind."""
