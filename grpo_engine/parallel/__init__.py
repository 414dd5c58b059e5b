"""Ranks and shards: how one job uses several devices.

Belongs here: collectives and what each rank holds. Does not: how ranks are started (`run/`).
"""
