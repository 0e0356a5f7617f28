"""Faults as a tool: everything that can break under a job, made on purpose.

The demo, the benchmarks and the end-to-end tests make their faults here, so the catalogue is
a package beside them: below tests/ the demo would import tests.
"""
