"""What the console stores and looks up, in SQL."""
