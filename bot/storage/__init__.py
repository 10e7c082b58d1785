"""What is kept: one file is one vendor."""
