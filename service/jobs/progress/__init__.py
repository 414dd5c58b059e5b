"""A running job's records: events, metrics, evaluations, and the live stream.

Belongs here: writing and reading a running job's history. Belongs elsewhere: state changes (`store/`).
"""
