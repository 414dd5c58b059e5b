"""Tools that a model may call while it answers.

Belongs here: parsing calls, running them, rendering their results.
Does not: what a job may say of them (`config/`).
"""
