"""Sampling on devices that the trainer does not use (`runtime.samplers`).

Belongs here: the trainer's side, and the requests.
Belongs elsewhere: a sampler's process (`run/sampler_process.py`), and how requests reach it (the launcher).
"""
