"""Sampling the next step while the current one trains (`max_staleness: 1`).

Belongs here: the background sampler and the snapshots it samples from.
Belongs elsewhere: the sampler itself.
"""
