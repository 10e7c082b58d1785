"""Limits on the rate, concurrency and cost of answers, and notices when they are refused."""
