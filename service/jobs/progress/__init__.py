"""What comes back while a job runs: recorded events, metrics, evaluations, the live stream.

Belongs here: writing and reading a running job's history. Does not: state changes (`store/`).
"""
