"""The `grpo` command: a client of the HTTP API, and the embedded service in one process tree.

Boundary: jobs, files and models are reached over HTTP only. `up`, `migrate`, `keys` and `models add` work
on the deployment itself: they run where its settings are and touch its database or catalogue.
"""
