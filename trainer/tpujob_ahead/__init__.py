"""The step compiled for a TPU slice on a machine without one: does it fit, how fast can it be."""
