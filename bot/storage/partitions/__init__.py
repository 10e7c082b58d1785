"""The partitions of PostgreSQL's large tables, one a week: an old one is dropped as a whole."""
