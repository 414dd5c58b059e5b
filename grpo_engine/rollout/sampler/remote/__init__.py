"""Samples on devices of their own, apart from the trainer (`runtime.samplers`).

Belongs here: the trainer's side, and the requests. Does not: a sampler's process (`run/sampler_process.py`),
and how requests reach it (the launcher).
"""
