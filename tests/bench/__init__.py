"""Benchmarks of the service, run as separate processes."""
