"""Sampling the next step while the current one trains (`max_staleness: 1`).

Belongs here: the background sampler and the snapshots it samples from. Does not: the sampler itself.
"""
