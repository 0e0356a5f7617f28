"""A proxy between the real operator and the real API server, which makes faults on demand.

``FaultProxy`` in ``proxy.py`` is what tests use; docs/testing-faults.md says how.
"""
