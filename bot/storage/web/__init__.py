"""What the web platform keeps, because no vendor keeps it."""
