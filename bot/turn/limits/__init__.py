"""Limits on answers: rate, concurrency and cost; and refusals."""
