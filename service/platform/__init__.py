"""The basis of all other rooms: database, tables, storage, ids, clock, logs, errors.

Belongs here: mechanisms without knowledge of jobs.
Does not: HTTP (`web/`) or decisions about a job (`jobs/`).
"""
