"""From a request to a queued job: preflight, estimate, creation.

Belongs here: everything that may refuse a job before it is stored.
Belongs elsewhere: what happens while it runs (`progress/`).
"""
