"""Benchmarks: each prints its figures, and as ratios where there is a peer or a physical limit."""
