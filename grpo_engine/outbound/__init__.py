"""Requests to servers run by others: address checks, pinned connections, signatures, a chat client.

Belongs here: everything that leaves the machine on a user's behalf.
Belongs elsewhere: what a grader does with the answer.
"""
