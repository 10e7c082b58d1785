"""A deterministic simulation of an installation: virtual time, a seeded scheduler, real code.

    python -m tests.simulation --seed 7 --steps 1000000
    python -m tests.simulation --seed 7 --build no_fence

Gateway, worker, sender and janitor of several processes run in one event loop whose clock moves
only when nobody has anything to do, and whose order of ready callbacks follows from the seed. They
are the product's own classes in its own container; the database is SQLite in memory, asked over a
simulated network; the platforms are in Python. Processes are killed between any two steps, stand
still for up to 45 s, and have clocks that jump; answers of the platforms and of the database are
lost. `tests.support.transcripts` reads the platforms' messages and nothing else.
"""
