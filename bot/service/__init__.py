"""The running service: its wiring, its life cycle and the supervision of platforms."""
