"""Run units of work on the driver itself: sqlite3 in a writer thread, asyncpg in the loop."""
