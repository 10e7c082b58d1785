"""The running service: its container, its life cycle and the supervision of platforms."""
