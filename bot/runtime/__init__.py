"""Asyncio building blocks: keyed worker pool, child processes, clock, tasks."""
