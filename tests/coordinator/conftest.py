"""Settings of these tests."""

from hypothesis import settings

# How long an example takes says nothing on a machine that does other work.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
