"""One attempt at one job: prepare, follow the engine's events, publish checkpoints, conclude.

Belongs here: what a claim leads to. Does not: how a process is started (`launchers/`).
"""
