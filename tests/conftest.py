"""How hard the property tests try: a little at every run, a lot behind `make soak`."""

from hypothesis import settings

settings.register_profile("quick", max_examples=200, deadline=None)
settings.register_profile("soak", max_examples=10_000, deadline=None)
settings.load_profile("quick")
