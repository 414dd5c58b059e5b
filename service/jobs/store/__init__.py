"""Rows of jobs and the queue's statements: create, claim, renew, finish, sweep, wake.

Belongs here: SQL and the transition of states. Belongs elsewhere: what a request may contain (`intake/`).
"""
