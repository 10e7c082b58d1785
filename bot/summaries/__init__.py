"""Rolling summaries of what no longer fits into the history."""
