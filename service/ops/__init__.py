"""For operators: health, readiness, Prometheus metrics, `grpo doctor`, orphaned objects.

Belongs here: reading the state of the whole deployment. Belongs elsewhere: changing a job.
"""
