"""One attempt at one job: prepare, follow the engine's events, publish checkpoints, conclude.

Belongs here: the course of an attempt after its claim.
Belongs elsewhere: how a process is started (`launchers/`).
"""
