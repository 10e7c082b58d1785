"""The parts of a process in groups, each built once; bot/service/wiring.py puts them together.

A group is handed the groups that it needs. None of them names a platform or a backend.
"""
