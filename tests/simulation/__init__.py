"""A deterministic simulation of an installation: virtual time, a seeded scheduler, real code.

    python -m tests.simulation --seed 7 --steps 1000000
    python -m tests.simulation --seed 7 --build no_fence

Gateway, worker, sender, and janitor of several processes run in one event loop. Its clock advances
only when no callback is ready, and the seed determines the order of ready callbacks. The classes
and the container are the product's own; the database is SQLite in memory behind a simulated
network, and the platforms are simulated, too. Processes are killed between any two steps, pause
for up to 45 s, and have clocks that jump; responses of platforms and database get lost.
`tests.support.transcripts` checks nothing but the platforms' messages.
"""
