"""Ranks and shards: how one job uses several devices.

Belongs here: collectives and what each rank holds.
Belongs elsewhere: how ranks are started (`run/`).
"""
