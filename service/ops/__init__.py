"""For operators: health, readiness, Prometheus metrics, `grpo doctor`, orphaned objects.

Belongs here: reading the state of the whole deployment. Does not: changing a job.
"""
