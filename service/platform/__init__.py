"""The basis of all other folders: database, tables, storage, ids, clock, logs, errors.

Belongs here: mechanisms without knowledge of jobs.
Belongs elsewhere: HTTP (`web/`) and decisions about a job (`jobs/`).
"""
