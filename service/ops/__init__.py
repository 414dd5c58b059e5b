"""What operators ask: health, readiness, Prometheus metrics, `grpo doctor`, orphaned objects.

Belongs here: looking at the whole deployment. Does not: changing a job.
"""
