"""Settings of all tests."""

from hypothesis import settings

# Other work on the machine slows single examples down; that is no failure.
settings.register_profile("pipesim", deadline=None)
settings.load_profile("pipesim")
